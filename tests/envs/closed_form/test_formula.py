"""The compiled closed form against a slow evaluation straight from its definition."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterps_envs.closed_form.formula import FITS, OUT_OF_DEVICES, OUT_OF_MEMORY, evaluate
from heterps_envs.closed_form.kernel_tables import kernel_tables
from heterps_envs.closed_form.placement import PlacedStage, Placement, encode
from heterps_envs.closed_form.stage_formula import in_flight
from heterps_envs.cost_tables import CostTables
from tests.envs.small_problems import placements, random_tables

SEEDS = st.integers(0, 10_000)


def slow_closed_form(t: CostTables, placement: Placement) -> tuple[float, float, bool]:
    """Step time, price per hour and whether memory suffices, by the formulas of the docstring."""
    step_time_s, price, fits = 0.0, 0.0, True
    forward_s, backward_s, latency_s, transfer_s, kept = [], [], [], [], []
    for stage, behind in zip(placement, [*placement[1:], None], strict=True):
        part, d = slice(stage.first_layer, stage.last_layer + 1), stage.device_class
        forward_s.append(sum(t.forward_s[part, d]))
        backward_s.append(sum(t.backward_s[part, d]))
        kept.append(sum(t.activation_bytes[part]))
        e = behind.device_class if behind else d
        sent = t.output_bytes[stage.last_layer] if behind else 0.0
        latency_s.append(t.latency_s[d, e] if behind else 0.0)
        transfer_s.append(sent * t.inverse_bandwidth_s_per_byte[d, e])
    there_and_back = [
        f + b + 2 * (x + y)
        for f, b, x, y in zip(forward_s, backward_s, latency_s, transfer_s, strict=True)
    ]
    for i, stage in enumerate(placement):
        part = slice(stage.first_layer, stage.last_layer + 1)
        d, k = stage.device_class, stage.replicas
        share = math.ceil(t.num_micro_batches / k)
        held = share
        if not t.is_gpipe:
            held = min(share, math.ceil((k + sum(s.replicas for s in placement[i + 1 :])) / k))
        need = sum(t.state_bytes[part]) + held * sum(t.activation_bytes[part])
        fits &= need <= t.memory_bytes[d]
        if not t.is_gpipe and not t.holds_by_rule:
            room = t.memory_bytes[d] - sum(t.state_bytes[part])
            held = max(n for n in range(held, share + 1) if n == held or n * kept[i] <= room)
        f, b = forward_s[i], backward_s[i]
        round_trip = 2 * (latency_s[i] + transfer_s[i]) + sum(there_and_back[i + 1 :])
        waits = [max(0.0, round_trip - (held - 1) * f), max(0.0, round_trip - (held - 1) * b)]
        wait = sum(waits) if held < share else max(waits)
        work = max(share * (f + b) + wait, math.ceil(share / held) * (f + b + round_trip))
        ring = (
            2 * (k - 1) * t.latency_s[d, d]
            + 2 * (k - 1) / k * sum(t.gradient_bytes[part]) * t.inverse_bandwidth_s_per_byte[d, d]
        )
        busy = work + ring + sum(t.optimizer_s[part, d])
        link = f + b + 2 * latency_s[i] + (share + 1) * transfer_s[i]
        longest = max(busy, link) if i + 1 < len(placement) else busy
        step_time_s = max(step_time_s, sum(there_and_back[:i]) + longest)
        price += k * t.price_usd_per_hour[d]
    return step_time_s, price, fits


@given(SEEDS, st.booleans(), st.data())
def test_the_kernel_agrees_with_the_definition(
    seed: int, holds_by_rule: bool, data: st.DataObject
) -> None:
    layers = data.draw(st.integers(1, 7))
    tables = random_tables(seed, layers, (4, 2, 3), holds_by_rule=holds_by_rule)
    placement = data.draw(placements(tables.num_layers, (4, 2, 3)))
    step_time_s, price, verdict = evaluate(encode(placement)[None], kernel_tables(tables))
    expected_s, expected_price, fits = slow_closed_form(tables, placement)
    assert verdict[0] == (FITS if fits else OUT_OF_MEMORY)
    assert price[0] == pytest.approx(expected_price)
    assert step_time_s[0] == pytest.approx(expected_s if fits else math.inf)


@given(SEEDS, st.data())
def test_more_of_anything_is_never_worse(seed: int, data: st.DataObject) -> None:
    tables = random_tables(seed, num_layers=6, counts=(3, 3))
    code = encode(data.draw(placements(6, (3, 3))))[None]
    before = evaluate(code, kernel_tables(tables))[0][0]
    factor = data.draw(st.floats(1, 10))
    for better in (
        replace(tables, memory_bytes=tables.memory_bytes * factor),
        replace(
            tables,
            inverse_bandwidth_s_per_byte=tables.inverse_bandwidth_s_per_byte / factor,
        ),
        replace(tables, latency_s=tables.latency_s / factor),
        replace(
            tables,
            forward_s=tables.forward_s / factor,
            backward_s=tables.backward_s / factor,
        ),
        replace(tables, activation_bytes=tables.activation_bytes / factor),
        replace(tables, device_count=tables.device_count + 1),
    ):
        assert evaluate(code, kernel_tables(better))[0][0] <= before * (1 + 1e-12)


def test_more_devices_than_there_are_is_out_of_devices() -> None:
    tables = random_tables(0, num_layers=3, counts=(2, 1))
    code = encode((PlacedStage(0, 0, 0, 2), PlacedStage(1, 1, 1), PlacedStage(2, 2, 0)))
    step_time_s, price, verdict = evaluate(code[None], kernel_tables(tables))
    assert verdict[0] == OUT_OF_DEVICES
    assert step_time_s[0] == price[0] == math.inf


@pytest.mark.parametrize(
    ("gpipe", "replicas", "behind", "expected"),
    [
        (False, 1, 0, 1),  # the last stage alternates
        (False, 1, 3, 4),  # devices behind, plus one
        (False, 1, 30, 8),  # never more than there are
        (False, 2, 2, 2),  # two equal pipelines side by side, each of two stages
        (False, 3, 1, 2),  # three feed one
        (False, 4, 30, 2),  # never more than its share
        (True, 1, 0, 8),
        (True, 3, 0, 3),
    ],
)
def test_in_flight_micro_batches_of_eight(
    gpipe: bool, replicas: int, behind: int, expected: int
) -> None:
    assert in_flight(8, gpipe, replicas, behind) == expected


def test_equal_stages_give_the_textbook_formula() -> None:
    stages, micro_batches, compute, transfer = 4, 8, 3.0, 0.25
    tables = random_tables(
        0,
        num_layers=stages,
        counts=(stages,),
        num_micro_batches=micro_batches,
        forward_s=np.full((stages, 1), compute / 3),
        backward_s=np.full((stages, 1), compute * 2 / 3),
        optimizer_s=np.zeros((stages, 1)),
        output_bytes=np.array([1.0, 1.0, 1.0, 0.0]),
        latency_s=np.zeros((1, 1)),
        inverse_bandwidth_s_per_byte=np.full((1, 1), transfer),
        memory_bytes=np.array([1e9]),
    )
    code = encode([PlacedStage(i, i, 0) for i in range(stages)])
    expected = stages * compute + 2 * (stages - 1) * transfer + (micro_batches - 1) * compute
    assert evaluate(code[None], kernel_tables(tables))[0][0] == pytest.approx(expected)
