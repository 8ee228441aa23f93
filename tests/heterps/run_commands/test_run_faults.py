"""`heterps run` and bad input: exit code 2 and one message, before any process starts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from heterps_configs.documents.plan import Plan
from heterps_configs.documents.yaml_files import read_yaml, write_text
from tests.runtime.small_runs import chain_of, problem_of

Heterps = Callable[..., Any]


def _files(folder: Path, **fields: object) -> Path:
    """A plan of two stages with its model and cluster; some fields are changed."""
    problem = problem_of("sequential")
    problem.cluster.to_file(folder / "cluster.yaml")
    problem.profile.to_file(folder / "model.yaml")
    plan = chain_of(problem, 3)
    content = {
        **plan.to_mapping(),
        "model_reference": "model.yaml",
        "cluster_reference": "cluster.yaml",
        **fields,
    }
    write_text(folder / "plan.yaml", _yaml(content))
    return folder / "plan.yaml"


def _yaml(content: object) -> str:
    import yaml

    return yaml.safe_dump(content)


def _stages(**last: object) -> list[dict[str, object]]:
    stages = chain_of(problem_of("sequential"), 3).to_mapping()["stages"]
    return [stages[0], {**stages[1], **last}]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"stages": _stages(last_layer=6)}, "must cover the layers 0..7 exactly once"),
        ({"stages": _stages(first_layer=4)}, "must cover the layers 0..7 exactly once"),
        ({"stages": _stages(devices=["d9"])}, "has no device called 'd9'"),
        ({"model_fingerprint": "of another model"}, "was made for the model"),
        (
            {"stages": _stages(devices=["d1", "d2"], tensor_shares=[0.5, 0.4])},
            "they sum to 0.9; must sum to 1",
        ),
    ],
)
def test_a_plan_that_does_not_fit_is_refused(
    heterps: Heterps, tmp_path: Path, fields: dict[str, object], expected: str
) -> None:
    outcome = heterps("run", _files(tmp_path, **fields), "--run-directory", tmp_path / "run")
    assert outcome.code == 2
    assert expected in " ".join(outcome.err.split())
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--nodes", 2), "missing: --node-rank, --rendezvous"),
        (("--nodes", 2, "--node-rank", 2, "--rendezvous", "a:1"), "allowed: 0..1"),
        (("--nodes", 2, "--node-rank", 0, "--rendezvous", "here"), "expected HOST:PORT"),
        (
            ("--nodes", 2, "--node-rank", 0, "--rendezvous", "127.0.0.1:29400"),
            "a run on several hosts needs a secret that all of them know",
        ),
    ],
)
def test_options_of_several_hosts_that_do_not_go_together_are_refused(
    heterps: Heterps, tmp_path: Path, options: tuple[object, ...], expected: str
) -> None:
    outcome = heterps("run", _files(tmp_path), "--run-directory", tmp_path / "run", *options)
    assert outcome.code == 2
    assert expected in " ".join(outcome.err.split())


def test_the_files_of_these_tests_are_a_plan(tmp_path: Path) -> None:
    assert Plan.from_file(_files(tmp_path)).num_layers == 8
    assert read_yaml(tmp_path / "cluster.yaml")["name"] == "four"
