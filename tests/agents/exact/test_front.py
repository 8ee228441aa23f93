"""What can still stand in front of a cut: bounds that every placement of small problems keeps."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps_agents.exact.kernels import total_and_held
from heterps_agents.exact.space import search_space
from heterps_envs.closed_form.formula import FITS, Built, append_stage, evaluate, is_dominated
from heterps_envs.closed_form.kernel_tables import KernelTables, kernel_tables
from heterps_envs.closed_form.objective import Goal
from heterps_envs.closed_form.placement import PlacedStage, decode
from heterps_envs.closed_form.stage_formula import in_flight
from tests.envs.small_problems import all_placement_codes, random_tables

ROUNDING = 1 + 1e-9


def fills_behind(
    kernel: KernelTables, placement: list[PlacedStage]
) -> Iterator[tuple[PlacedStage, int, float, float]]:
    """Each stage, back to front: it, the devices used up to it, step time and fill with it."""
    step_time_s, fill_s, next_class, used, devices = 0.0, 0.0, -1, 0, 0
    strides = np.concatenate([[1], np.cumprod(kernel.device_count + 1)[:-1]])
    for stage in reversed(placement):
        kind, replicas = stage.device_class, stage.replicas
        held = in_flight(kernel.num_micro_batches, kernel.is_gpipe, replicas, devices)
        step_time_s, fill_s = append_stage(
            kernel, stage.first_layer, stage.last_layer + 1, kind, replicas, held,
            Built(next_class, step_time_s, fill_s),
        )  # fmt: skip
        used, devices, next_class = used + int(replicas * strides[kind]), devices + replicas, kind
        yield stage, used, step_time_s, fill_s


def weightless(kernel: KernelTables) -> KernelTables:
    return kernel._replace(memory_bytes=np.full_like(kernel.memory_bytes, np.inf))


def uses_devices_that_help(kernel: KernelTables, placement: list[PlacedStage]) -> bool:
    behind = 0
    for stage in reversed(placement):
        largest, _ = total_and_held(weightless(kernel), 0, 1, 0, stage.replicas)
        if behind > largest or is_dominated(
            kernel.num_micro_batches, kernel.is_gpipe, stage.replicas
        ):
            return False
        behind += stage.replicas
    return True


@given(
    st.integers(0, 10_000),
    st.integers(2, 4),
    st.sampled_from([(3,), (2, 1), (2, 2), (1, 1, 1), (4, 1)]),
    st.sampled_from([1.0, 1.2, 2.0, math.inf]),
    st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_no_placement_within_the_limit_is_outside_the_bounds(
    seed: int, num_layers: int, counts: tuple[int, ...], slack: float, is_price: bool
) -> None:
    kernel = kernel_tables(random_tables(seed, num_layers, counts))
    codes = all_placement_codes(num_layers, counts)
    step_time_s, price, verdict = evaluate(codes, kernel)
    cost = step_time_s * (price + 1e-9) if is_price else step_time_s
    limit = float(cost.min()) * slack
    if not math.isfinite(cost.min()):
        return
    space = search_space(kernel, Goal(is_price=is_price), limit)
    for index in np.flatnonzero((cost <= limit) & (verdict == FITS)):
        placement = list(decode(codes[index]))
        if not uses_devices_that_help(kernel, placement):
            continue
        _, _, whole_s, whole_fill_s = list(fills_behind(kernel, placement))[-1]
        assert whole_s <= space.latest_s[0, 0] * ROUNDING
        for stage, state, behind_s, fill_s in fills_behind(kernel, placement):
            cut, kind = stage.first_layer, stage.device_class
            assert space.delay_s[cut, kind, state] <= (whole_fill_s - fill_s) * ROUNDING + 1e-12
            assert fill_s <= space.most_fill_s[cut, kind, state] * ROUNDING
            delay = space.delay_s[cut, kind, state]
            assert behind_s + delay <= space.latest_s[cut, state] * ROUNDING


def test_a_device_that_no_stage_needs_is_not_tried() -> None:
    """5 replicas of 8 micro-batches do two each, as 4 do; they only feed the stages before."""
    kernel = kernel_tables(random_tables(0, 4, (6,)))._replace(num_micro_batches=8, is_gpipe=False)
    assert total_and_held(weightless(kernel), 0, 1, 0, 5)[0] == 3
    assert total_and_held(weightless(kernel), 0, 1, 0, 4)[0] > 1000
