"""What is learned does not depend on the plan, and actions are carried out in the list's order."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from heterps_configs.documents.job import Schedule
from tests.runtime.parity_checks import SCHEDULES, check_buffers, check_parity, problem_with
from tests.runtime.random_plans import SIZES, plans
from tests.runtime.small_runs import chain_of, plan_of

TINY = ("sequential", "structured", "frozen_middle")
SLOW = ("gpt2", "ctr", "t5")
_SETTINGS = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
pytestmark = pytest.mark.filterwarnings("ignore:batch normalisation")


def _check_any_plan(data: st.DataObject, models: tuple[str, ...], schedule: Schedule) -> None:
    model = data.draw(st.sampled_from(models), label="model")
    problem = problem_with(model, schedule, data.draw(st.sampled_from(SIZES), label="sizes"))
    check_parity(problem, data.draw(plans(problem), label="plan"))


@pytest.mark.slow
@pytest.mark.parametrize("schedule", SCHEDULES)
@given(data=st.data())
@settings(_SETTINGS, max_examples=6)
def test_random_plans_train_like_one_process(schedule: Schedule, data: st.DataObject) -> None:
    _check_any_plan(data, TINY, schedule)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", SCHEDULES)
@given(data=st.data())
@settings(_SETTINGS, max_examples=3)
def test_random_plans_of_real_models_train_like_one_process(
    schedule: Schedule, data: st.DataObject
) -> None:
    _check_any_plan(data, SLOW, schedule)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("model", ["structured", "long_skip", "frozen_middle", "dropping"])
def test_unusual_boundaries_under_every_schedule(model: str, schedule: Schedule) -> None:
    """Tuples and dictionaries, skips over stages, frozen layers in front and in the middle."""
    problem = problem_with(model, schedule, (3, 1, 4, 2))
    plan = plan_of(
        problem,
        {
            "a": (0, 0, "d0"), "b": (1, 2, "d1"), "c": (3, 3, "d0"), "d": (4, -1, "d1"),
            "e": (0, 1, "d2"), "f": (2, 2, "d3"), "g": (3, 3, "d2"),
        },
        {("a", "b", "c", "d"): (0, 2), ("e", "f", "g", "d"): (1, 3)},
    )  # fmt: skip
    check_parity(problem, plan)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "schedule"),
    [
        ("resnet", "gpipe"), ("llama", "1f1b"), ("resnet", "interleaved"), ("llama", "zero-bubble"),
        ("resnet", "zero-bubble"),
    ],
)  # fmt: skip
def test_micro_batches_of_unequal_size_under_every_schedule(model: str, schedule: Schedule) -> None:
    problem = problem_with(model, schedule, (1, 4, 2, 3, 1))
    check_parity(problem, chain_of(problem, 1, 3))


@pytest.mark.slow
@pytest.mark.parametrize("is_recomputed", [False, True])
def test_running_statistics_are_those_of_one_process(is_recomputed: bool) -> None:
    """Also where layers are computed again: a micro-batch counts once."""
    problem = problem_with("resnet", "1f1b", (2, 3))
    plan = chain_of(problem, 2, 4)
    if is_recomputed:
        stages = [s.changed(recompute_layers=tuple(s.layers)) for s in plan.stages]
        plan = plan.changed(stages=tuple(stages))
    check_buffers(problem, check_parity(problem, plan))
