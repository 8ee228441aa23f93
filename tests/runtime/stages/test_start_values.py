"""Sources of values: what is held already is not made again, what comes later has no value yet."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor, nn

from heterps_configs.documents.run_settings import RunSettings
from heterps_envs.schedule.build import build_schedule
from heterps_runtime.models.build import build_module
from heterps_runtime.specification.build import build_specification
from heterps_runtime.stages.build import build_stages
from heterps_runtime.stages.start_values import Blank, Initialised
from tests.runtime.small_models import source_of
from tests.runtime.small_runs import plan_of, problem_of


class _Counting(Initialised):
    """Remembers which values it made."""

    def __init__(self) -> None:
        super().__init__(seed=0)
        self.made: list[str] = []

    def parameters(self, module: nn.Module, names: Collection[str]) -> dict[str, Tensor]:
        self.made += names
        return super().parameters(module, names)


def test_overlapping_stages_and_ties_of_one_device_are_made_once() -> None:
    problem = problem_of("gpt2")
    plan = plan_of(
        problem,
        {"a": (0, 2, "d0"), "b": (3, -1, "d0"), "c": (0, 1, "d1"), "d": (2, -1, "d0")},
        {("a", "b"): (0, 1), ("c", "d"): (2, 3)},
    )
    schedule = build_schedule(problem, plan)
    specification = build_specification(
        problem, plan, schedule, RunSettings(steps=1), devices=plan.devices
    )
    start = _Counting()
    modules = build_stages(specification, "d0", start)
    held = {id(p) for module in modules.values() for p in module.parameters_by_name().values()}
    assert len(start.made) == len(set(start.made)) == len(held)
    assert start.remarks() == []


def test_blank_values_have_the_shapes_of_the_model() -> None:
    module = build_module(source_of("gpt2"), dtype="bfloat16")
    name, parameter = next(iter(module.named_parameters()))
    values = Blank().parameters(module, [name])
    assert list(values) == [name]
    assert values[name].shape == parameter.shape
    assert (values[name].dtype, values[name].device.type) == (torch.bfloat16, "cpu")
