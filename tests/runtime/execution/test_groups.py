"""Plans with tensor-parallel groups, in one process: the training is that of one device."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from heterps_configs.documents.job import Schedule
from heterps_configs.errors import HeterpsError
from heterps_runtime.specification.build import check_runnable
from tests.runtime.group_plans import grouped
from tests.runtime.parity_checks import SCHEDULES, check_parity, problem_with
from tests.runtime.small_runs import DEVICES

SIZES = (4, 4, 2)


@pytest.mark.parametrize(
    ("model", "schedule"),
    [*(("llama", schedule) for schedule in SCHEDULES), ("gpt2", "zero-bubble"), ("bert", "1f1b")],
)
def test_two_groups_in_a_chain(model: str, schedule: Schedule) -> None:
    problem = problem_with(model, schedule, SIZES)
    check_parity(problem, grouped(problem, {"a": DEVICES[:2], "b": DEVICES[2:]}))


@pytest.mark.parametrize("model", ["llama", "bert"])
@pytest.mark.parametrize(
    ("groups", "shares"),
    [
        ({"a": "0", "b": "123"}, (0.5, 0.25, 0.25)),
        ({"a": "01", "b": "2"}, (0.25, 0.75)),
        ({"a": "0123"}, ()),
    ],
)
def test_unlike_groups_with_uneven_shares(
    model: str, groups: dict[str, str], shares: Sequence[float]
) -> None:
    problem = problem_with(model, "1f1b", SIZES)
    named = {name: [f"d{number}" for number in own] for name, own in groups.items()}
    plan = grouped(problem, named, shares)
    if problem.profile.tied_layers and len(groups) > 1:
        with pytest.raises(HeterpsError, match="hold the same parameters"):
            check_runnable(problem, plan)
    else:
        check_parity(problem, plan)


@pytest.mark.parametrize("model", ["gpt2", "sequential"])
def test_replicas_of_groups(model: str) -> None:
    problem = problem_with(model, "1f1b", SIZES)
    groups = {"a": DEVICES[:2], "b": DEVICES[2:]}
    check_parity(problem, grouped(problem, groups, (0.25, 0.75), are_replicas=True))
