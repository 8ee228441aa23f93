"""Provisioning: two worked examples, and brute force over all counts.

The worked examples are evaluations of HeterPS's cost model (Liu et al., "HeterPS", FGCS 148, 2023)
on made-up stages, checked by an independent program; they are not numbers of that paper.
"""

from __future__ import annotations

import itertools
import math
from typing import TypedDict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps_agents.systems.heterps.elastic_chain import ElasticChain
from heterps_agents.systems.heterps.elastic_counts import cheapest
from heterps_agents.systems.heterps.provisioning import (
    AmdahlStage,
    Provisioning,
    cost_of,
    provision,
)
from heterps_configs.errors import InfeasibleError
from tests.agents.elastic_chains import fixed_stages

CPU_AND_GPU = (
    AmdahlStage(10.0, 0.95, 4.0, 0.90, 0.04, 400),
    AmdahlStage(0.5, 0.90, 0.3, 0.80, 2.42, 40),
)
THREE_STAGES = (
    AmdahlStage(8.0, 0.96, 2.0, 0.9, 0.04, 120),
    AmdahlStage(1.2, 0.97, 0.2, 0.8, 2.42, 20),
    AmdahlStage(3.0, 0.95, 0.5, 0.9, 0.04, 60),
)


class Run(TypedDict):
    batch: float
    samples: float


RUN: Run = {"batch": 100.0, "samples": 1e6}


@pytest.mark.parametrize(
    ("limit", "units", "cost_usd", "throughput"),
    [
        (50, (34, 1), 8.183824, 128.3019),
        (100, (34, 1), 8.183824, 128.3019),
        (128, (34, 1), 8.183824, 128.3019),
        (130, (36, 1), 8.190586, 130.9091),
        (150, (57, 1), 8.703704, 150.0),
        (190, (361, 1), 24.649123, 190.0),
    ],
)
def test_one_cpu_and_one_gpu_stage(
    limit: float, units: tuple[int, ...], cost_usd: float, throughput: float
) -> None:
    found = provision(CPU_AND_GPU, min_throughput=limit, **RUN)
    assert found.units == units
    assert found.cost_usd == pytest.approx(cost_usd, abs=1e-6)
    assert found.throughput_samples_per_s == pytest.approx(throughput, abs=1e-4)


@pytest.mark.parametrize(
    ("limit", "units", "cost_usd", "throughput"),
    [
        (100, (26, 2, 7), 10.574667, 161.8123),
        (160, (26, 2, 7), 10.574667, 161.8123),
        (170, (66, 3, 10), 12.484848, 229.1667),
        (200, (66, 3, 10), 12.484848, 229.1667),
        (220, (66, 3, 10), 12.484848, 229.1667),
    ],
)
def test_three_stages(
    limit: float, units: tuple[int, ...], cost_usd: float, throughput: float
) -> None:
    found = provision(THREE_STAGES, min_throughput=limit, **RUN)
    assert found.units == units
    assert found.cost_usd == pytest.approx(cost_usd, abs=1e-6)
    assert found.throughput_samples_per_s == pytest.approx(throughput, abs=1e-4)


def test_the_seconds_of_a_stage_follow_amdahls_law() -> None:
    cpu, gpu = CPU_AND_GPU
    seconds = [cpu.period_s(units) for units in (1, 7, 19, 34, 57)]
    assert seconds == pytest.approx([10.0, 1.857143, 1.0, 0.779412, 0.666667], abs=1e-6)
    assert [gpu.period_s(1), gpu.period_s(2)] == pytest.approx([0.5, 0.275])


@pytest.mark.parametrize(("limit", "units"), [(50, 6.3333), (100, 19.0), (150, 57.0), (190, 361.0)])
def test_balanced_at_the_limit_the_units_are_real_numbers(limit: float, units: float) -> None:
    cpu, gpu = CPU_AND_GPU
    assert cpu.units_for(100 / limit) == pytest.approx(units, abs=1e-4)
    assert gpu.units_for(100 / limit) == 1.0


@pytest.mark.parametrize(
    ("limit", "units"), [(100, (11.2941, 1.2075, 3.3529)), (200, (42.6667, 2.5086, 8.1429))]
)
def test_three_balanced_stages_have_real_units_too(limit: float, units: tuple[float, ...]) -> None:
    balanced = [stage.units_for(100 / limit) for stage in THREE_STAGES]
    assert balanced == pytest.approx(units, abs=1e-4)


@pytest.mark.parametrize(("limit", "cost_usd"), [(50, 13.928571), (100, 8.833333)])
def test_balancing_at_the_limit_and_rounding_up_costs_more(limit: float, cost_usd: float) -> None:
    rounded = [math.ceil(stage.units_for(100 / limit) - 1e-9) for stage in CPU_AND_GPU]
    assert cost_of(CPU_AND_GPU, rounded, **RUN).cost_usd == pytest.approx(cost_usd, abs=1e-6)
    assert provision(CPU_AND_GPU, min_throughput=limit, **RUN).cost_usd < cost_usd


def test_a_limit_that_the_units_at_hand_miss_names_the_stage() -> None:
    with pytest.raises(InfeasibleError, match=r"stage 0 .* its 400 units reach 190\.931"):
        provision(CPU_AND_GPU, min_throughput=199, **RUN)


def test_a_limit_above_the_supremum_says_that_no_units_help() -> None:
    with pytest.raises(InfeasibleError, match=r"stage 0 .* no number of units exceeds 200"):
        provision(CPU_AND_GPU, min_throughput=200, **RUN)


def test_halved_prices_halve_the_cost_and_keep_the_units() -> None:
    halved = [s._replace(price_usd_per_hour=s.price_usd_per_hour / 2) for s in THREE_STAGES]
    before = provision(THREE_STAGES, min_throughput=100, **RUN)
    after = provision(halved, min_throughput=100, **RUN)
    assert after.units == before.units
    assert after.cost_usd == pytest.approx(before.cost_usd / 2)


def test_slower_stages_cost_in_proportion_and_reach_as_much_less() -> None:
    slower = [
        s._replace(compute_s=4 * s.compute_s, communication_s=4 * s.communication_s)
        for s in THREE_STAGES
    ]
    before = provision(THREE_STAGES, min_throughput=160, **RUN)
    after = provision(slower, min_throughput=40, **RUN)
    assert after.units == before.units
    assert after.cost_usd == pytest.approx(4 * before.cost_usd)
    assert after.throughput_samples_per_s == pytest.approx(before.throughput_samples_per_s / 4)


@st.composite
def stages(draw: st.DrawFn) -> list[AmdahlStage]:
    seconds, share = st.floats(0.1, 10), st.floats(0, 1)
    return [
        AmdahlStage(
            draw(seconds),
            draw(share),
            draw(seconds),
            draw(share),
            draw(st.floats(0.01, 5)),
            draw(st.integers(1, 9)),
            draw(st.sampled_from("ab")),
        )
        for _ in range(draw(st.integers(1, 3)))
    ]


def brute_force(
    given: list[AmdahlStage], limit: float, available: dict[str, int]
) -> Provisioning | None:
    """All counts."""
    found = [
        cost_of(given, units, **RUN)
        for units in itertools.product(*(range(1, s.max_units + 1) for s in given))
        if all(
            sum(u for s, u in zip(given, units, strict=True) if s.kind == kind) <= most
            for kind, most in available.items()
        )
    ]
    kept = [each for each in found if each.throughput_samples_per_s >= limit * (1 - 1e-12)]
    return min(kept, key=lambda each: each.cost_usd, default=None)


@given(stages(), st.floats(1, 200), st.integers(1, 12))
@settings(max_examples=200, deadline=None)
def test_no_other_counts_are_cheaper(drawn: list[AmdahlStage], limit: float, shared: int) -> None:
    available = {"a": shared}
    best = brute_force(drawn, limit, available)
    if best is None:
        with pytest.raises(InfeasibleError):
            provision(drawn, min_throughput=limit, available=available, **RUN)
        return
    found = provision(drawn, min_throughput=limit, available=available, **RUN)
    assert found.cost_usd == pytest.approx(best.cost_usd)


@given(stages(), st.integers(0, 2), st.floats(1.1, 5))
@settings(max_examples=100, deadline=None)
def test_a_dearer_stage_never_gets_more_units(
    drawn: list[AmdahlStage], index: int, factor: float
) -> None:
    index = min(index, len(drawn) - 1)
    dearer = list(drawn)
    dearer[index] = drawn[index]._replace(
        price_usd_per_hour=drawn[index].price_usd_per_hour * factor
    )
    before, after = provision(drawn, **RUN), provision(dearer, **RUN)
    if after.units[index] > before.units[index]:  # only where two plans cost the same
        assert cost_of(drawn, after.units, **RUN).cost_usd == pytest.approx(before.cost_usd)


@pytest.mark.parametrize("limit", [50, 130, 150, 190])
def test_the_elastic_chain_solves_fixed_stages_too(limit: float) -> None:
    """Without communication, which a chain has on its cuts and not in its stages."""
    compute_only = [stage._replace(communication_s=0.0) for stage in CPU_AND_GPU]
    chain: ElasticChain = fixed_stages(compute_only)
    found = cheapest(chain, 100 / limit)
    expected = provision(compute_only, min_throughput=limit, **RUN)
    assert tuple(stage.replicas for stage in found.plan.stages) == expected.units
    assert found.plan.usd_per_micro_batch * 1e4 == pytest.approx(expected.cost_usd)
