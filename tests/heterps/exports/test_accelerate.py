"""A device map comes back as the plan that it was made of, and accelerate takes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from heterps.exports.export import export_plan
from heterps.exports.imported import import_plan
from heterps.planning.problems import load_problem
from heterps_configs.errors import HeterpsError
from heterps_envs.problem import Problem
from heterps_runtime.models.build import build_module
from tests.heterps.exports.small_plans import ONE, chain_of

LANGUAGE_MODELS = (
    "gpt2",
    "bert-large",
    "llama-tiny",
    pytest.param("llama-7b", marks=pytest.mark.slow),
    pytest.param("llama-70b", marks=pytest.mark.slow),
)
OTHERS = ("perceptron", "ctr-tiny", "resnet-50", "vit-large")


def exported(problem: Problem, cuts: tuple[tuple[int, int], ...], folder: Path) -> dict[str, Any]:
    export_plan(problem, chain_of(problem, ONE, cuts=cuts), "accelerate", folder)
    found: dict[str, Any] = json.loads((folder / "device_map.json").read_text())
    return found


@pytest.mark.parametrize("model", [*LANGUAGE_MODELS, *OTHERS])
def test_a_device_map_of_a_shipped_model_comes_back(model: str, tmp_path: Path) -> None:
    problem = load_problem(model, "a100-v100")
    last = problem.profile.num_layers - 1
    # The last stage is a layer alone, whose head may share parameters with the first one.
    cuts = ((0, last // 3), (last // 3 + 1, last - 1), (last, last))
    exported(problem, cuts, tmp_path / "out")
    names = [name for (name,) in ONE]
    _, again = import_plan(problem, tmp_path / "out" / "device_map.json", "accelerate", names)
    found = [(stage.first_layer, stage.last_layer, stage.devices) for stage in again.stages]
    assert found == [(*cut, (name,)) for cut, name in zip(cuts, names, strict=True)]


@pytest.mark.parametrize("model", ["gpt2", "bert-large"])
def test_modules_that_share_a_parameter_are_on_one_device(model: str, tmp_path: Path) -> None:
    modeling = pytest.importorskip("accelerate.utils.modeling")
    problem = load_problem(model, "a100-v100")
    last = problem.profile.num_layers - 1
    device_map = exported(problem, ((0, 3), (4, last - 1), (last, last)), tmp_path / "out")
    assert problem.profile.source is not None
    groups = modeling.find_tied_parameters(build_module(problem.profile.source))
    assert groups
    for group in groups:
        assert len({place_of(name, device_map) for name in group}) == 1


def place_of(parameter: str, device_map: dict[str, Any]) -> Any:
    """Of the smallest module on the map that has it."""
    above = [path for path in device_map if f"{parameter}.".startswith(f"{path}.")]
    return device_map[max(above, key=len)]


def test_modules_that_no_layer_has_are_named_and_none_stands_twice(tmp_path: Path) -> None:
    problem, file = load_problem("perceptron", "a100-v100"), tmp_path / "map.json"
    places = ", ".join(f'"{index}": 0' for index in range(problem.profile.num_layers))
    file.write_text(f'{{{places}, "zz": 1}}')
    with pytest.warns(UserWarning, match="map.json: zz: no layer of perceptron is there"):
        import_plan(problem, file, "accelerate", None)
    file.write_text(f'{{{places}, "0": 1}}')
    with pytest.raises(HeterpsError, match="the key '0' stands twice"):
        import_plan(problem, file, "accelerate", None)


def test_a_plan_that_says_how_many_are_in_flight_is_exported(tmp_path: Path) -> None:
    problem = load_problem("perceptron", "a100-v100", micro_batch_size=8)
    last = problem.profile.num_layers - 1
    plan = chain_of(problem, ONE, cuts=((0, 1), (2, last - 1), (last, last)))
    stages = (plan.stages[0].changed(in_flight=2), *plan.stages[1:])
    export_plan(problem, plan.changed(stages=stages), "accelerate", tmp_path / "out")
    assert (tmp_path / "out" / "device_map.json").is_file()
