"""Plans with tensor-parallel groups, in one process: the training is that of one device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from heterps_agents.interface.planner import Budget
from heterps_agents.systems.hap.system import Hap
from heterps_configs.documents.cluster import Link
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


@pytest.mark.parametrize("batch", [4, 8])
def test_what_hap_finds_runs(batch: int) -> None:
    """One micro-batch: slices of unlike devices; two: replicas of unlike devices, or slices."""
    problem = problem_with("llama", "1f1b", (4,) * (batch // 4))
    (node,) = problem.cluster.nodes
    fast = node.changed(link=Link(latency_s=0, bandwidth_bytes_per_s=1e12))
    problem = replace(problem, cluster=problem.cluster.changed(nodes=(fast,)))
    plan = Hap().plan(problem, Budget())
    assert len(plan.devices) > 1
    check_parity(problem, plan)


@pytest.mark.parametrize("model", ["gpt2", "sequential"])
def test_replicas_of_groups(model: str) -> None:
    problem = problem_with(model, "1f1b", SIZES)
    groups = {"a": DEVICES[:2], "b": DEVICES[2:]}
    check_parity(problem, grouped(problem, groups, (0.25, 0.75), are_replicas=True))
