"""What Sailor's planner is asked for: seconds or dollars, floors, budgets, GPUs that stay idle."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps_agents.systems.sailor.cost import cost_of, memory_problems
from heterps_agents.systems.sailor.goal import SailorGoal
from heterps_agents.systems.sailor.planner import SailorAnswer, SailorLimits, plan_for
from heterps_agents.systems.sailor.twins import find_twins
from heterps_configs.errors import InfeasibleError
from heterps_configs.importers.sailor_runs import SailorPlan
from tests.agents.small_sailor import all_plans, racks, random_problem, renamed_twin

PRICES = {"fast": 3.0, "slow": 1.0, "third": 1.7}
TYPES = ("fast", "slow", "third")


def answer_to(
    seed: int, num_gpus: Mapping[str, int], goal: SailorGoal, num_layers: int = 4, batch: int = 8
) -> SailorAnswer:
    problem = random_problem(seed, num_layers, TYPES[: len(num_gpus)])
    return plan_for(*problem, num_gpus, batch, SailorLimits(goal=goal))


def used(plan: SailorPlan) -> Counter[str]:
    groups = (group for stage in plan.stages for group in stage.groups)
    return Counter(group.gpu for group in groups for _ in range(group.tensor_parallel))


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    num_layers=st.integers(1, 4),
    num_gpus=st.sampled_from(
        [{"fast": 2, "slow": 2}, {"fast": 1, "slow": 3}, {"fast": 2, "slow": 1, "third": 2}]
    ),
    batch=st.integers(1, 12),
    is_by_usd=st.booleans(),
    shares=st.tuples(*[st.one_of(st.none(), st.floats(0, 1))] * 2),
)
def test_no_plan_of_the_same_kind_is_better_and_keeps_the_limits(
    seed: int,
    num_layers: int,
    num_gpus: Mapping[str, int],
    batch: int,
    is_by_usd: bool,
    shares: tuple[float | None, float | None],
) -> None:
    model, cluster, links = random_problem(seed, num_layers, TYPES[: len(num_gpus)])
    free = SailorGoal("usd" if is_by_usd else "seconds", PRICES)
    costs = []
    for plan in all_plans(num_layers, num_gpus, batch):
        if not memory_problems(model, cluster, plan):
            seconds = cost_of(model, links, plan).iteration_s
            costs.append((seconds, free.usd(plan, seconds)))
    # Limits between those of the best plan and of the worst.
    limits = [
        float(np.quantile([cost[which] for cost in costs], share))
        if costs and share is not None
        else math.inf
        for which, share in enumerate(shares)
    ]
    goal = free._replace(most_s=limits[0], most_usd=limits[1])
    values = [value for cost in costs if math.isfinite(value := goal.value(*cost))]
    asked = SailorLimits(goal=goal)
    if not values:
        with pytest.raises(InfeasibleError, match="passes the memory check"):
            plan_for(model, cluster, links, num_gpus, batch, asked)
        return
    answer = plan_for(model, cluster, links, num_gpus, batch, asked)
    assert goal.value(answer.cost.iteration_s, answer.usd) == pytest.approx(min(values), rel=2e-6)
    assert answer.lower_bound <= min(values)
    assert answer.lower_bound == pytest.approx(min(values), rel=2e-6)
    assert answer.usd == free.usd(answer.plan, answer.cost.iteration_s)


@pytest.mark.parametrize("seed", range(3))
def test_the_cheapest_plan_is_never_dearer_than_the_quickest(seed: int) -> None:
    """Sailor's property (i); with a floor at what the quickest reaches, too."""
    num_gpus = {"fast": 4, "slow": 4, "third": 4}
    quickest = answer_to(seed, num_gpus, SailorGoal("seconds", PRICES))
    cheapest = answer_to(seed, num_gpus, SailorGoal("usd", PRICES))
    most_s = quickest.cost.iteration_s
    as_quick = answer_to(seed, num_gpus, SailorGoal("usd", PRICES, most_s=most_s))
    assert cheapest.usd <= as_quick.usd * (1 + 1e-6) <= quickest.usd * (1 + 2e-6)
    assert as_quick.cost.iteration_s <= most_s


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_a_tighter_budget_is_kept_and_never_quicker(seed: int) -> None:
    """Sailor's property (ii), down to the budget that buys nothing."""
    num_gpus = {"fast": 4, "slow": 4, "third": 4}
    whole = answer_to(seed, num_gpus, SailorGoal("seconds", PRICES))
    least = answer_to(seed, num_gpus, SailorGoal("usd", PRICES)).usd
    seconds = []
    for most_usd in np.linspace(whole.usd, least * (1 + 1e-6), 4):
        goal = SailorGoal("seconds", PRICES, most_usd=float(most_usd))
        answer = answer_to(seed, num_gpus, goal)
        assert answer.usd <= most_usd
        seconds.append(answer.cost.iteration_s)
    assert seconds[0] == pytest.approx(whole.cost.iteration_s, rel=2e-6)
    assert all(later >= sooner * (1 - 2e-6) for sooner, later in itertools.pairwise(seconds))
    with pytest.raises(InfeasibleError, match=r"within .* USD an iteration"):
        answer_to(seed, num_gpus, SailorGoal("seconds", PRICES, most_usd=least * 0.99))


@pytest.mark.parametrize("seed", range(3))
def test_a_higher_floor_is_kept_and_never_cheaper(seed: int) -> None:
    num_gpus = {"fast": 4, "slow": 4}
    quickest = answer_to(seed, num_gpus, SailorGoal("seconds", PRICES)).cost.iteration_s
    usd = []
    for factor in (4.0, 2.0, 1.4, 1.1, 1.0):
        answer = answer_to(seed, num_gpus, SailorGoal("usd", PRICES, most_s=quickest * factor))
        assert answer.cost.iteration_s <= quickest * factor
        usd.append(answer.usd)
    assert all(later >= sooner * (1 - 2e-6) for sooner, later in itertools.pairwise(usd))


@pytest.mark.slow
@pytest.mark.parametrize("limit", ["candidates.MAX_STATES", "search.MOST_TRIED"])
@pytest.mark.parametrize("minimises", ["seconds", "usd"])
def test_what_is_too_much_to_look_at_is_in_the_bound(
    monkeypatch: pytest.MonkeyPatch, limit: str, minimises: Literal["seconds", "usd"]
) -> None:
    num_gpus, goal, is_worse = {"fast": 4, "slow": 4, "third": 4}, SailorGoal(minimises, PRICES), []
    for seed in range(2):
        whole = answer_to(seed, num_gpus, goal)
        with monkeypatch.context() as patch:
            patch.setattr(f"heterps_agents.systems.sailor.{limit}", 5000 if "MAX" in limit else 1)
            part = answer_to(seed, num_gpus, goal)
        best = goal.value(whole.cost.iteration_s, whole.usd)
        value = goal.value(part.cost.iteration_s, part.usd)
        assert part.lower_bound <= best <= value * (1 + 2e-6)
        is_worse.append(part.lower_bound < best * (1 - 1e-3))
    assert any(is_worse)


def test_gpus_are_told_apart_by_their_price_alone() -> None:
    model, cluster, links = renamed_twin(*random_problem(2, 3), "fast", "twin")
    counts = {"fast": 2, "twin": 2, "slow": 2}
    same = SailorGoal("usd", {"fast": 2.0, "twin": 2.0, "slow": 1.0})
    spot = SailorGoal("usd", {"fast": 2.0, "twin": 0.5, "slow": 1.0})
    assert len(find_twins(model, cluster, links, counts, same)) == 2
    assert len(find_twins(model, cluster, links, counts, spot)) == 3
    answer = plan_for(model, cluster, links, {"fast": 2, "twin": 2}, 8, SailorLimits(goal=spot))
    assert set(used(answer.plan)) == {"twin"}


def test_slow_gpus_behind_a_slow_link_stay_idle() -> None:
    """Sailor's property (iii): of 128 A100 and 128 V100 only the A100s are used."""
    both, alone = {"A100": 128, "V100": 128}, {"A100": 128}
    mixed = plan_for(*racks(1.0), both, 1024)
    assert used(mixed.plan) == alone
    assert mixed.cost == plan_for(*racks(1.0), alone, 1024).cost
    assert used(plan_for(*racks(100.0), both, 1024).plan) == both
