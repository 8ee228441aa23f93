"""What is said of problems without a plan, against brute force over all placements."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps_configs.units import bytes_text
from heterps_envs.closed_form.formula import evaluate
from heterps_envs.closed_form.infeasible import explain_infeasible
from heterps_envs.closed_form.kernel_tables import kernel_tables
from heterps_envs.closed_form.memory_search import missing_bytes, most_covered
from heterps_envs.cost_tables import CostTables
from heterps_envs.problem import Problem
from tests.envs.small_problems import all_placement_codes, chain_problem

COUNTS = ((1, 1), (3,), (2, 1), (1, 1, 1))


def best_step_time_s(tables: CostTables) -> float:
    """Of all placements; inf where none fits."""
    codes = all_placement_codes(tables.num_layers, tuple(tables.device_count.tolist()))
    return float(evaluate(codes, kernel_tables(tables))[0].min())


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Small ones whose bytes, link and floor may each rule out every plan."""
    layers, counts = draw(st.integers(1, 4)), draw(st.sampled_from(COUNTS))
    size = len(counts)

    def each(low: int, high: int, length: int = layers) -> list[int]:
        return draw(st.lists(st.integers(low, high), min_size=length, max_size=length))

    settings: dict[str, Any] = {
        "num_micro_batches": draw(st.integers(1, 6)),
        "speeds": [float(value) for value in each(1, 3, size)],
        "counts": counts,
        "memory_bytes": each(20, 240, size),
        "parameters": each(0, 12),
        "activation_bytes": [float(value) for value in each(0, 30)],
        "schedule": draw(st.sampled_from(["1f1b", "gpipe"])),
        "min_throughput": draw(st.sampled_from([None, 0.02, 0.1, 0.5])),
    }
    seconds = [float(value) for value in each(1, 4)]
    return chain_problem(seconds, seconds, **settings)


@given(problems())
@settings(max_examples=120, deadline=None)
def test_the_reason_is_the_true_one(problem: Problem) -> None:
    tables = problem.tables
    best_s = best_step_time_s(tables)
    text = explain_infeasible(problem)
    floor = problem.job.min_throughput_samples_per_s
    if best_s == math.inf:
        check_memory(tables, text)
    elif floor is not None and problem.job.global_batch_size / best_s < floor:
        assert f"throughput floor of {floor:g} samples/s" in text
        reachable = re.search(r"(?:exceed|for all plans is) ([\d.e+-]+) samples/s", text)
        assert reachable is not None
        assert problem.job.global_batch_size / best_s <= float(reachable.group(1)) * (1 + 1e-3)
    else:
        assert "iB more" not in text
        assert "out of reach" not in text


AMOUNT = r"([\d.,]+ [KMG]?i?B)"


def num_bytes(text: str) -> float:
    """What a text such as `1.5 GiB` says."""
    number, unit = text.split()
    return float(number.replace(",", "")) * math.pow(1024, ["B", "KiB", "MiB", "GiB"].index(unit))


def check_memory(tables: CostTables, text: str) -> None:
    """The bytes that are said to be missing are missing, in three digits."""
    if "of the layers" not in text:
        layer = re.match(
            rf"layer \d+ .* fits on no device: it needs {AMOUNT} .*, {AMOUNT} more", text
        )
        total = re.match(rf"the model needs at least {AMOUNT}, {AMOUNT} more", text)
        found = layer or total
        assert found, text
        need, more = map(num_bytes, found.groups())
        together = tables.device_count @ tables.memory_bytes
        known = tables.memory_bytes if layer else [together]
        assert any(need - more == pytest.approx(size, abs=1 + 0.01 * need) for size in known)
        return
    more = missing_bytes(tables)
    assert f"would need {bytes_text(more)} more" in text
    assert best_step_time_s(replace(tables, memory_bytes=tables.memory_bytes + more)) < math.inf
    less = replace(tables, memory_bytes=tables.memory_bytes + more - 1)
    assert best_step_time_s(less) == math.inf


@given(problems())
@settings(max_examples=80, deadline=None)
def test_the_search_by_memory_alone_is_exact(problem: Problem) -> None:
    tables = problem.tables
    covered = most_covered(tables)
    assert (covered.first_layer == 0) == (best_step_time_s(tables) < math.inf)
    assert (missing_bytes(tables) == 0) == (covered.first_layer == 0)
    assert covered.devices <= tables.device_count.sum()


def test_too_many_combinations_of_devices_are_explained_by_filling_the_largest_first() -> None:
    problem = chain_problem(
        [1.0] * 40,
        [1.0] * 40,
        parameters=[10] * 40,
        speeds=(1.0,) * 6,
        counts=(6,) * 6,
        memory_bytes=[90] * 6,
    )
    text = explain_infeasible(problem)
    assert text.startswith("the stage of the layers 0..3 ")
    assert "fill 36 of the 36 devices" in text
