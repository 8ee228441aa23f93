"""Elastic counts: the dynamic programme against all plans of small chains."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps_agents.systems.heterps.elastic_chain import ElasticChain, plan_of, steady_chain
from heterps_agents.systems.heterps.elastic_counts import cheapest, cheapest_at, elastic_frontier
from heterps_configs.errors import InfeasibleError
from heterps_envs.closed_form.formula import evaluate
from heterps_envs.closed_form.kernel_tables import kernel_tables
from heterps_envs.closed_form.placement import encode
from tests.agents.elastic_chains import every_plan, random_chain
from tests.envs.small_problems import placements, random_tables

SEEDS = st.integers(0, 100_000)


def small_chain(seed: int) -> ElasticChain:
    rng = np.random.default_rng(seed)
    layers, classes = int(rng.integers(1, 5)), int(rng.integers(1, 4))
    return random_chain(seed, layers, classes, 3 if layers < 4 else 2)


@pytest.mark.slow
@given(SEEDS, st.floats(0.05, 8), st.booleans())
@settings(max_examples=30, deadline=None)
def test_no_plan_that_keeps_the_period_has_a_lower_price(
    seed: int, period_s: float, merges_equal: bool
) -> None:
    chain = small_chain(seed)
    prices = [
        plan.price_usd_per_hour
        for plan in every_plan(chain, merges_equal)
        if plan.period_s <= period_s
    ]
    found = cheapest_at(chain, period_s, merges_equal)
    if not prices:
        assert found is None
        return
    assert found is not None
    assert found.period_s <= period_s * (1 + 1e-8)
    assert found.price_usd_per_hour == pytest.approx(min(prices))


@given(SEEDS, st.floats(0.3, 8), st.booleans())
@settings(max_examples=60, deadline=None)
def test_no_plan_under_the_floor_costs_less(seed: int, period_s: float, merges_equal: bool) -> None:
    chain = small_chain(seed)
    costs = [
        plan.usd_per_micro_batch
        for plan in every_plan(chain, merges_equal)
        if plan.period_s <= period_s
    ]
    if not costs:
        with pytest.raises(InfeasibleError, match="layer"):
            cheapest(chain, period_s, merges_equal=merges_equal)
        return
    found = cheapest(chain, period_s, merges_equal=merges_equal)
    assert found.plan.usd_per_micro_batch == pytest.approx(min(costs), rel=1e-7)
    assert found.least_usd_per_micro_batch <= min(costs) * (1 + 1e-8)
    assert found.plan == plan_of(chain, found.plan.stages)


@given(SEEDS)
@settings(max_examples=30, deadline=None)
def test_no_plan_is_faster_and_cheaper_than_one_of_the_frontier(seed: int) -> None:
    chain = small_chain(seed)
    front = elastic_frontier(chain, 16)
    plans = [plan for plan in every_plan(chain, False) if plan.period_s < math.inf]
    assert bool(front) == bool(plans)
    for point in front:
        better = [
            plan
            for plan in plans
            if plan.period_s <= point.period_s
            and plan.price_usd_per_hour < point.price_usd_per_hour * (1 - 1e-6)
        ]
        assert not better
    costs = [point.usd_per_micro_batch for point in front]
    assert costs == sorted(costs, reverse=True)


def test_the_search_over_periods_says_what_is_left_when_it_is_stopped() -> None:
    chain = random_chain(3, 40, 4, 64)
    stopped = cheapest(chain, 40.0, max_targets=5)
    finished = cheapest(chain, 40.0)
    assert stopped.targets == 5
    assert stopped.least_usd_per_micro_batch <= finished.plan.usd_per_micro_batch * (1 + 1e-9)
    assert finished.plan.usd_per_micro_batch <= stopped.plan.usd_per_micro_batch
    assert finished.least_usd_per_micro_batch == pytest.approx(finished.plan.usd_per_micro_batch)


def test_halved_prices_halve_the_cost_and_keep_the_stages() -> None:
    chain = random_chain(5, 12, 3, 8)
    halved = chain._replace(price_usd_per_hour=chain.price_usd_per_hour / 2)
    before, after = cheapest(chain, 6.0).plan, cheapest(halved, 6.0).plan
    assert after.stages == before.stages
    assert after.usd_per_micro_batch == pytest.approx(before.usd_per_micro_batch / 2)


def test_one_class_that_must_merge_is_one_stage() -> None:
    chain = random_chain(1, 6, 1, 8)._replace(fixed_s=np.full((6, 1), 0.1))
    found = cheapest(chain, 100.0, merges_equal=True).plan
    assert [(stage.first_layer, stage.last_layer) for stage in found.stages] == [(0, 5)]


def test_two_stages_of_a_class_can_be_cheaper_than_one() -> None:
    """Half of each layer is serial: together they keep no period of 1 s, apart one unit each."""
    chain = ElasticChain(
        fixed_s=np.full((2, 1), 0.5),
        shared_s=np.full((2, 1), 0.5),
        link_fixed_s=np.zeros((2, 1, 1)),
        link_shared_s=np.zeros((2, 1, 1)),
        price_usd_per_hour=np.ones(1),
        max_units=np.array([8]),
    )
    apart = cheapest_at(chain, 1.0)
    assert apart is not None
    assert [stage.replicas for stage in apart.stages] == [1, 1]
    assert cheapest_at(chain, 1.0, merges_equal=True) is None
    with pytest.raises(InfeasibleError, match="units of a stage do not share"):
        cheapest(chain, 1.0, merges_equal=True)


def test_a_period_that_one_layer_cannot_keep_names_it_and_by_how_much() -> None:
    chain = random_chain(2, 4, 2, 4)._replace(
        fixed_s=np.array([[0.1, 0.1], [0.1, 0.1], [3.0, 4.0], [0.1, 0.1]]),
        shared_s=np.zeros((4, 2)),
    )
    with pytest.raises(InfeasibleError, match=r"layer 2 takes 3 s at least, 1 s more"):
        cheapest(chain, 2.0)


@given(SEEDS, st.data())
@settings(max_examples=60, deadline=None)
def test_the_steady_period_is_never_above_the_closed_form(seed: int, data: st.DataObject) -> None:
    tables = random_tables(seed, 5, (3, 2), memory_bytes=np.full(2, 1e9))
    placement = data.draw(placements(5, (3, 2)))
    if any(stage.replicas > tables.num_micro_batches for stage in placement):
        return
    step_time_s, price, _ = evaluate(encode(placement)[None], kernel_tables(tables))
    plan = plan_of(steady_chain(tables), placement)
    assert plan.period_s * tables.num_micro_batches <= step_time_s[0] * (1 + 1e-9)
    assert plan.price_usd_per_hour == pytest.approx(price[0])
