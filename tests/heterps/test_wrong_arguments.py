"""Every public function names an argument that it cannot take, before anything is done."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import heterps
from heterps import HeterpsError
from heterps_configs.errors import DocumentError
from heterps_envs.problem import Problem


class Unfinished:
    """A planner that forgets to return its plan."""

    name = "unfinished"

    def plan(self, problem: Problem, budget: heterps.Budget) -> None:
        """Plans nothing."""


# Stands for a problem, which takes time to read.
CHAIN = object()
BATCH = torch.zeros(1, 4)
PAIR = ("gpt2", "a100-v100")
WRONG: list[tuple[str, tuple[Any, ...], dict[str, Any], str]] = [
    ("place", ("gpt2",), {}, "problem: is of type str"),
    ("place", (CHAIN, None), {}, "planner: is None"),
    ("place", (CHAIN, Unfinished), {}, "planner: is the class Unfinished"),
    ("place", (CHAIN, Unfinished()), {}, "what unfinished returned: is None"),
    ("place", (CHAIN,), {"budget": 3}, "budget: is of type int"),
    ("place", (CHAIN,), {"seed": -1}, "seed: is -1; allowed: a whole number from 0"),
    ("place", (CHAIN,), {"seed": 2**63}, f"seed: is {2**63}"),
    ("place", (CHAIN,), {"seed": 1.5}, "seed: is of type float"),
    ("place", (CHAIN,), {"seed": True}, "seed: is of type bool"),
    ("place", (CHAIN,), {"effort": 3}, "effort: is of type int"),
    ("compare", ("gpt2",), {}, "problem: is of type str"),
    ("compare", (CHAIN, ["even", 3]), {}, "planner: is of type int"),
    ("compare", (CHAIN,), {"seconds": "3"}, "seconds: is of type str"),
    ("compare", (CHAIN,), {"on_start": None}, "on_start: is None"),
    ("frontier", ("gpt2",), {}, "problem: is of type str"),
    ("frontier", (CHAIN,), {"budget": 3}, "budget: is of type int"),
    ("place_code", ("gpt2", [1]), {}, "problem: is of type str"),
    ("Budget", ("3",), {}, "evaluations: is of type str"),
    ("Budget", (2.5,), {}, "evaluations: is of type float"),
    ("planner_named", (["auto"],), {}, "planner: is of type list"),
    ("planner_named", ("auto",), {"seed": "a"}, "seed: is of type str"),
    ("load_problem", ("gpt2", None), {}, "cluster: is None"),
    ("load_problem", (3, "a100-v100"), {}, "model: is of type int"),
    ("load_problem", PAIR, {"strategy": {}}, "strategy: is of type dict"),
    ("load_problem", PAIR, {"job_file": 3}, "job_file: is of type int"),
    ("load_problem", PAIR, {"sequence_length": "x"}, "sequence_length: is of type str"),
    ("load_problem", (nn.Identity, "a100-v100"), {"example": 3}, "inputs: is of type int"),
    (
        "load_problem",
        (nn.Identity, "a100-v100"),
        {"example": BATCH, "dtype": torch.half},
        "job options: dtype: must be",
    ),
    ("run", (3,), {}, "plan: is of type int"),
    ("run", ("plan.yaml", 3), {}, "program: is of type int"),
    ("run", ("plan.yaml", None, 3), {}, "settings: is of type int"),
    ("run", ("plan.yaml",), {"events": 3}, "events: is of type int"),
    ("run", ("plan.yaml",), {"trace": 3}, "trace: is of type int"),
    ("PipelineTrainer", (3, "plan.yaml", None), {}, "model: is of type int"),
    ("PipelineTrainer", (nn.Identity, 3, None), {}, "plan: is of type int"),
    ("PipelineTrainer", (nn.Identity, "plan.yaml", None), {}, "program: is None"),
    ("TrainingProgram", (), {"model": nn.Identity()}, "model: is a module"),
    ("TrainingProgram", (), {"loss": 3}, "loss: is of type int"),
    ("TrainingProgram", (), {"max_gradient_norm": "3"}, "max_gradient_norm: is of type str"),
    ("TrainingProgram", (), {"num_workers": 0.5}, "num_workers: is of type float"),
    ("TrainingProgram", (), {"callbacks": print}, "callbacks: is of type builtin"),
    ("TrainingProgram", (), {"metrics": {"error": 3}}, "metrics: is of type int"),
    ("TrainingProgram", (), {"state": [3]}, "state: is of type list"),
]


@pytest.fixture(scope="module")
def chain() -> Problem:
    return heterps.load_problem(*PAIR, global_batch_size=8, strategy=heterps.Strategy())


@pytest.mark.parametrize(("name", "values", "named", "text"), WRONG)
def test_a_wrong_argument_is_named(
    chain: Problem, name: str, values: tuple[Any, ...], named: dict[str, Any], text: str
) -> None:
    given = [chain if value is CHAIN else value for value in values]
    with pytest.raises(HeterpsError) as caught:
        getattr(heterps, name)(*given, **named)
    assert str(caught.value).startswith(text)
    assert "; allowed: " in str(caught.value) or isinstance(caught.value, DocumentError)


def test_paths_single_planners_and_whole_floats_are_taken(chain: Problem, tmp_path: Path) -> None:
    chain.cluster.to_file(tmp_path / "cluster.yaml")
    chain.profile.to_file(tmp_path / "model.yaml")
    problem = heterps.load_problem(tmp_path / "model.yaml", tmp_path / "cluster.yaml")
    assert (problem.profile, problem.cluster) == (chain.profile, chain.cluster)
    seed: Any = np.int64(3)
    compared = heterps.compare(chain, heterps.planner_named("even", seed=seed))
    assert [row.planner for row in compared.rows] == ["even"]
    many: Any = 1e4
    assert heterps.Budget(many).evaluations_left == 10_000
