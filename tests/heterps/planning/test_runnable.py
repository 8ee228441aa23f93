"""Plans of traced models split what a run splits."""

from __future__ import annotations

import pytest

from benchmarks.parity.models import profile_of
from benchmarks.parity.plans import plan_of, problem_of
from heterps.planning.runnable import as_groups_run_it, with_whole_layers
from heterps_configs.documents.run_settings import RunSettings
from heterps_configs.documents.stage import Stage
from heterps_configs.errors import HeterpsError
from heterps_envs.problem import Problem
from heterps_envs.schedule.build import build_schedule
from heterps_runtime.specification.build import build_specification
from heterps_runtime.tensor_parallel.found_splits import why_not
from tests.runtime.tensor_parallel.split_cases import case_of


def _prepare(problem: Problem, shape: str) -> None:
    plan = plan_of(problem, shape)
    schedule = build_schedule(problem, plan)
    build_specification(problem, plan, schedule, RunSettings(steps=1), devices=plan.devices)


@pytest.mark.slow
def test_layers_that_no_group_of_a_run_can_split_are_counted_as_whole() -> None:
    """T5 adds a whole table of position biases to the scores of each head."""
    problem = problem_of(profile_of("t5"), "groups", "1f1b", "adamw")
    with pytest.raises(HeterpsError, match="cannot be split"):
        _prepare(problem, "groups")
    with pytest.warns(UserWarning, match="stay whole in tensor-parallel groups"):
        known = as_groups_run_it(problem, plan_of(problem, "groups"))
    assert known is not None
    assert any(layer.tensor_split is not None for layer in known.profile.layers)
    _prepare(known, "groups")


def test_queries_that_no_group_of_a_run_can_part_are_counted_together() -> None:
    case = case_of("own attention")
    four = Stage(
        name="s",
        first_layer=0,
        last_layer=case.profile.num_layers - 1,
        devices=("d0", "d1", "d2", "d3"),
    )
    assert why_not(case.profile, case.found, four) is not None
    known, reasons = with_whole_layers(case.profile, "float32")
    assert reasons == {}
    assert why_not(known, case.found, four) is None
    for layer, before in zip(known.layers, case.profile.layers, strict=True):
        assert before.tensor_split is not None
        assert layer.tensor_split == before.tensor_split.by_key_values() != before.tensor_split


def test_a_plan_without_groups_builds_no_model() -> None:
    problem = problem_of(profile_of("t5"), "equal cuts", "1f1b", "adamw")
    assert as_groups_run_it(problem, plan_of(problem, "equal cuts")) is None


@pytest.mark.slow
def test_layers_that_no_group_can_split_by_batch_are_known_before_a_plan_is_shown() -> None:
    """The model's own code works with what Llama's last norm returns."""
    problem = problem_of(profile_of("llama"), "groups", "1f1b", "adamw")
    plan, last = plan_of(problem, "groups"), problem.profile.num_layers - 1
    (*_, stage) = plan.stages
    inner = plan.changed(stages=(*plan.stages[:-1], stage.changed(batch_layers=(last - 1,))))
    ends = plan.changed(stages=(*plan.stages[:-1], stage.changed(batch_layers=(last - 1, last))))
    assert as_groups_run_it(problem, inner, is_traced=False) is None
    known = as_groups_run_it(problem, ends, is_traced=False)
    assert known is not None
    can = [layer.splits_by_batch for layer in known.profile.layers]
    assert can == [True] * last + [False]
