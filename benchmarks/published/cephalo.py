"""Cephalo's measured blocks on two L4, an A6000 and a P40: its shares of 64 samples.

    python benchmarks/published/published.py --workloads FOLDER --only cephalo

The first row is the published case, whose lines stand in the project's tests; its peers are the
shares that Cephalo's code ships, [13, 12, 34, 5], and equal batches. The rows after it are every
block of `model_latencies.json` that was measured on all three GPUs: lines of seconds over the
micro-batch are fitted to its measured points where it has them (`points`), else they are its own
lines. The file has no lines of both passes for the published case's L4 and A6000. Cost is one block
without collectives, as in the published case; state is counted where the parameters are known.
Where points are far from their line (`lines_off`, a mean), so is what the row says: a line that
crosses zero lets the smallest micro-batches take no time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from heterps_agents.systems.cephalo.batches import Case, best_answer, least_seconds
from heterps_agents.systems.cephalo.cost import DeviceTimes, Line
from heterps_configs.importers.json_entry import Entry
from tests.agents.systems.cephalo.published_case import CASE, SHIPPED, line

FILE = Path("cephalo") / "model_latencies.json"
GPUS = ("l4", "l4", "a6000", "p40")
# Milliseconds of the published case: the optimum, which the shipped shares reach, and even ones.
OPTIMUM_MS, EVEN_MS = 342.3, 958.8
# Digits of these.
ROUNDING_MS = 0.05


class _Measured(NamedTuple):
    """Lines of a block on a GPU, and how many points they are fitted to; 0: they are the file's.

    Attributes:
        off: Mean distance of the points from the lines, over the points; None without points.
    """

    times: DeviceTimes
    points: int
    off: float | None


def rows(workloads: Path, quick: bool, seed: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """One row for each block; nothing is drawn, and all of it is quick."""
    del quick, seed
    best_answer(CASE)  # compiles
    table = [_row("published: gpt_2.7b 512 float16", CASE)]
    shipped_s = max(least_seconds(CASE, device, n) for device, n in enumerate(SHIPPED))
    table[0] |= {"shipped_ms": 1e3 * shipped_s}
    own, even = table[0]["ours_ms"], table[0]["even_ms"]
    is_met = own <= OPTIMUM_MS + ROUNDING_MS and abs(even - EVEN_MS) <= ROUNDING_MS
    table[0]["met"] = is_met
    for name, measured in _blocks(Entry.from_json(workloads / FILE)):
        case = CASE._replace(
            times=tuple(measured[gpu].times for gpu in GPUS),
            state_bytes=CASE.state_bytes if name.startswith("gpt_2.7b") else 0.0,
        )
        points = min(each.points for each in measured.values())
        offs = [each.off for each in measured.values() if each.off is not None]
        table.append(
            _row(name, case)
            | {"points": points or "", "lines_off": max(offs) if offs else ""}
        )  # fmt: skip
    ratios = [row["even_over_ours"] for row in table]
    return table, {
        "cephalo_met": f"{int(is_met)} of 1",
        "cephalo_blocks": len(table) - 1,
        "cephalo_even_over_ours": f"{min(ratios):.2f} to {max(ratios):.2f}",
        "cephalo_most_cpu_s": max(row["cpu_s"] for row in table),
    }


def _row(name: str, case: Case) -> dict[str, Any]:
    start = time.process_time()
    answer = best_answer(case)
    cpu_s = time.process_time() - start
    assert answer is not None, "the state fits"
    equal = case.num_samples // len(case.times)
    even_s = max(least_seconds(case, device, equal) for device in range(len(case.times)))
    return {
        "case": name,
        "ours_ms": 1e3 * answer.seconds,
        "even_ms": 1e3 * even_s,
        "even_over_ours": even_s / answer.seconds,
        "samples": " ".join(str(batch.samples) for batch in answer.batches),
        "cpu_s": cpu_s,
    }


def _blocks(top: Entry) -> Iterator[tuple[str, dict[str, _Measured]]]:
    """Each block, sequence length and number format that was measured on all three GPUs."""
    for model, by_gpu in top.items():
        if not all(by_gpu.has(gpu) for gpu in GPUS):
            continue
        first, *others = (by_gpu[gpu] for gpu in dict.fromkeys(GPUS))
        for length, by_format in first.items():
            # Of an older layout: numbers of one format, without its name.
            names = [n for n, _ in by_format.items()] if isinstance(by_format.value, dict) else []
            for number_format in names:
                found = {
                    gpu: _measured(by_gpu[gpu][length][number_format])
                    for gpu, entry in zip(dict.fromkeys(GPUS), (first, *others), strict=True)
                    if entry.has(length) and entry[length].has(number_format)
                }
                whole = {gpu: each for gpu, each in found.items() if each is not None}
                if len(whole) == len(set(GPUS)):
                    yield f"{model} {length} {number_format}", whole


def _measured(entry: Entry) -> _Measured | None:
    """None for entries of one number or line, which do not say which pass they are of."""
    if not isinstance(entry.value, list) or len(entry.value) not in (2, 4):
        return None
    parts = entry.entries()
    if not all(isinstance(part.value, list) for part in parts):
        return None
    numbers = [[float(each.number(-1e9)) for each in part.entries()] for part in parts]
    if len(parts) == 2:
        return _Measured(DeviceTimes(line(*numbers[0]), line(*numbers[1])), 0, None)
    fits = [_fitted(points) for points in numbers[2:]]
    off = float(np.mean([each for _, each in fits]))
    times = DeviceTimes(fits[0][0], fits[1][0])
    return _Measured(times, min(len(points) for points in numbers[2:]), off)


def _fitted(points_ms: list[float]) -> tuple[Line, float]:
    """The line of least squares, and the points' mean distance from it over themselves."""
    sizes = np.arange(1, len(points_ms) + 1)
    slope, start = np.polyfit(sizes, points_ms, 1)
    off = np.abs(slope * sizes + start - points_ms) / np.array(points_ms)
    return line(float(slope), float(start)), float(off.mean())
