"""Cost fixtures of Oobleck, Malleus, AMP and HARP: the formulas, and what our solvers make of them.

Splits of the exact solver are scored with the formula of the system that the fixture is from. The
AMP case is a synthetic twin: its published one needs profiles that are not free to copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest

from heterps_agents.exact.solve import solve
from heterps_envs.closed_form.formula import Built, step_with_stage_s
from heterps_envs.closed_form.kernel_tables import kernel_tables
from heterps_envs.closed_form.placement import decode
from heterps_envs.cost_tables import CostTables
from tests.agents.published_costs import (
    Split,
    amp_s,
    oobleck_s,
    shares,
    splits,
    template_combinations,
)


def tables_of(
    weights: Sequence[float],
    speeds: Sequence[float],
    counts: Sequence[int],
    micro_batches: int,
    *,
    gradient_bytes: Sequence[float] | None = None,
) -> CostTables:
    """Free links between stages; by default an all-reduce so dear that no stage has replicas."""
    size, layers = len(speeds), len(weights)
    seconds = np.outer(weights, speeds)
    is_free = gradient_bytes is not None
    return CostTables(
        num_micro_batches=micro_batches,
        is_gpipe=False,
        forward_s=seconds / 3,
        backward_s=seconds * 2 / 3,
        optimizer_s=np.zeros((layers, size)),
        state_bytes=np.ones(layers),
        gradient_bytes=np.array(gradient_bytes if is_free else [1e15] * layers, dtype=float),
        activation_bytes=np.zeros(layers),
        output_bytes=np.zeros(layers),
        device_count=np.array(counts, dtype=np.int64),
        memory_bytes=np.full(size, 1e9),
        price_usd_per_hour=np.ones(size),
        latency_s=np.zeros((size, size)),
        inverse_bandwidth_s_per_byte=np.ones((size, size)),
    )


def exact_split(tables: CostTables) -> Split:
    code = solve(kernel_tables(tables)).code
    assert code is not None
    return tuple(stage.last_layer - stage.first_layer + 1 for stage in decode(code))


@pytest.mark.parametrize(
    ("weights", "num_stages", "best_s", "best_split"),
    [
        ([2, 3, 4], 2, 43, (2, 1)),
        ([1, 2, 3, 4, 5, 6], 3, 117, (3, 2, 1)),
        ([1] * 24 + [6], 4, 148, None),
    ],
)
def test_oobleck_templates(
    weights: list[float], num_stages: int, best_s: float, best_split: Split | None
) -> None:
    scored = {split: oobleck_s(weights, split) for split in splits(len(weights), num_stages)}
    assert min(scored.values()) == best_s
    if best_split is not None:
        assert scored[best_split] == best_s
        tables = tables_of(weights, [1.0], [num_stages], 4 * num_stages)
        assert exact_split(tables) == best_split


@pytest.mark.parametrize(
    ("nodes", "sizes", "ways"),
    [
        (13, range(2, 8), 17),
        (8, range(2, 5), 4),
        (14, range(2, 6), 13),
        (30, range(2, 9), 358),
        (16, range(2, 9), 40),
        (13, range(3, 8), 6),
    ],
)
def test_oobleck_counts_combinations_of_templates(nodes: int, sizes: range, ways: int) -> None:
    assert template_combinations(nodes, sizes) == ways


def test_oobleck_shares_a_batch_among_unequal_pipelines() -> None:
    """Objectives, not shares: several shares reach them. Two pipelines of the second kind."""
    assert max(t * n for t, n in zip([4, 3], shares([4, 3], 70), strict=True)) == 120
    best = min(
        max(6 * a, 4 * b, 3 * c)
        for a, b, c in product(range(1, 65), repeat=3)
        if a + 2 * b + c == 64
    )
    assert best == 66


@pytest.mark.parametrize(
    ("slowdowns", "slowest", "total", "busiest"),
    [
        ((2, 1, 1, 1), 10, (10, 8), 288),
        ((2, 1.5, 1.2, 1), 11, (11, 8), 297),
    ],
)
def test_malleus_splits_layers_and_micro_batches(
    slowdowns: tuple[float, ...], slowest: float, total: tuple[int, int], busiest: int
) -> None:
    layers = shares(slowdowns, 32)
    assert max(y * n for y, n in zip(slowdowns, layers, strict=True)) == pytest.approx(slowest)
    routed = shares(total, 64)
    assert max(o * m for o, m in zip(total, routed, strict=True)) == busiest


@pytest.mark.parametrize(
    ("speeds", "counts", "slowest"), [((2, 1), (1, 3), 10), ((2, 1.5, 1.2, 1), (1, 1, 1, 1), 11)]
)
def test_the_exact_solver_finds_malleus_slowest_stage(
    speeds: tuple[float, ...], counts: tuple[int, ...], slowest: float
) -> None:
    """With so many micro-batches that only the slowest stage counts."""
    micro_batches = 100_000
    result = solve(kernel_tables(tables_of([1.0] * 32, speeds, counts, micro_batches)))
    assert result.step_time_s / micro_batches == pytest.approx(slowest, rel=1e-3)


def test_amp_counts_the_all_reduce_in_its_split() -> None:
    """24 layers in 4 stages of 2 replicas; a twin of AMP's GPT-2 with a heavy first layer.

    The split that is best for the pipeline alone puts parameters where the all-reduce is slow.
    """
    compute_s = [0.3, *[1.0] * 22, 2.5]
    parameters = [12.0, *[2.0] * 22, 6.0]

    def seconds(split: Split, all_reduce: bool) -> float:
        return amp_s(
            compute_s,
            parameters,
            split,
            micro_batches=8,
            message_s=0.05,
            replicas=2,
            seconds_per_parameter=1.5 if all_reduce else 0.0,
        )

    options = list(splits(24, 4))
    pipeline_only = min(options, key=lambda split: seconds(split, all_reduce=False))
    joint = min(options, key=lambda split: seconds(split, all_reduce=True))
    assert seconds(joint, all_reduce=True) < seconds(pipeline_only, all_reduce=True) * 0.99


def test_the_exact_solver_counts_the_all_reduce_too() -> None:
    """Replicas of the first stage would have to move the gradients of the heavy layer."""
    weights = [1.0] * 6
    heavy = [40.0, *[0.0] * 5]
    free = solve(kernel_tables(tables_of(weights, [1.0], [4], 8, gradient_bytes=[0.0] * 6)))
    assert free.code is not None
    tables = tables_of(weights, [1.0], [4], 8, gradient_bytes=heavy)
    best = solve(kernel_tables(tables))
    blind = solve(kernel_tables(tables), known=free.code)
    assert best.step_time_s == blind.step_time_s
    assert best.code is not None
    first = decode(best.code)[0]
    assert (first.first_layer, first.replicas) == (0, 1)
    assert decode(free.code)[0].replicas > 1


def test_harp_launches_more_micro_batches_where_a_link_is_slow() -> None:
    """Two stages, 64 micro-batches, 0.2143 s, 0.076 s over the link and back, 0.2202 s.

    HARP's README prints a cost of 14.3811 for stages that launch 3 and 1 micro-batches; its rounded
    seconds give `63 * 0.2202 + 0.2143 + 0.2202 + 0.0760 = 14.3831`. The closed form agrees, and
    says what plain 1F1B, with two in flight, would lose.
    """
    last_s = step_with_stage_s(
        0.2202 / 3, 0.2202 * 2 / 3, 0.0, Built(-1, 0.0, 0.0), 64, 1, 0.0, 0.0
    )

    def both_s(held: int) -> float:
        return float(
            step_with_stage_s(
                0.2143 / 3, 0.2143 * 2 / 3, 0.0, Built(0, last_s, 0.2202), 64, held, 0.0, 0.038
            )
        )

    assert both_s(3) == pytest.approx(14.3831, abs=1e-4)
    assert both_s(3) == pytest.approx(14.3811, abs=3e-3)
    assert both_s(2) > 16
