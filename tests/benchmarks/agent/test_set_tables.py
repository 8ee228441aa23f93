"""A section that was stopped goes on behind the problems that are done."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.agent.comparison import Entry
from benchmarks.agent.section import Settings, every
from benchmarks.agent.set_tables import digest, numbers, set_tables
from heterps_agents.interface.planner import Budget


def _entries(asked: list[float]) -> Sequence[Entry[float, float]]:
    def run(case: float, budget: Budget, seed: int) -> float:
        asked.append(case)
        if len(asked) > 20:
            raise KeyboardInterrupt
        return case

    return [Entry("twice", lambda case, budget, seed: 2 * case), Entry("once", run)]


def test_finished_problems_are_not_run_again(tmp_path: Path) -> None:
    settings = Settings(partial_file=tmp_path / "out.partial.jsonl")
    cases = [float(number) for number in range(1, 9)]
    notes, asked = {"set": "Numbers."}, list[float]()
    store = settings.store("section", x=1)
    try:
        set_tables(
            "section", {"set": cases}, {"set": _entries(asked)}, lambda case, answer: answer,
            store, 0, notes,
        )  # fmt: skip
    except KeyboardInterrupt:
        stopped_at = asked[-1]
    asked.clear()
    (table,) = set_tables(
        "section", {"set": cases}, {"set": _entries(asked)}, lambda case, answer: answer,
        settings.store("section", x=1), 0, notes,
    )  # fmt: skip
    assert stopped_at > 1
    assert min(asked) == stopped_at
    assert [row["gap_median"] for row in table.rows] == [1.0, 0.0]
    assert numbers([table])["set: once: gap_p95"] == 0.0


def test_only_the_first_problems_get_slow_entries() -> None:
    every_one: Entry[float, float] = Entry("all", lambda case, budget, seed: case)
    slow: Entry[float, float] = Entry("slow", lambda case, budget, seed: case, first=2)
    (table,) = set_tables(
        "section", {"set": [1.0, 2.0, 3.0]}, {"set": [every_one, slow]},
        lambda case, answer: answer, Settings().store("section"), 0, {"set": ""},
    )  # fmt: skip
    assert [row["problems"] for row in table.rows] == [3, 2]


def test_a_part_of_a_set_is_spread_over_it() -> None:
    assert every(range(10), 5) == [0, 2, 4, 6, 8]
    assert every([1, 2], 5) == [1, 2]
    assert every([1, 2], None) == [1, 2]


def test_digests_depend_on_names_and_numbers() -> None:
    zeros, ones = np.zeros(3), np.ones(3)
    assert digest({"a": zeros}) == digest({"a": zeros.copy()})
    assert len({digest({"a": zeros}), digest({"b": zeros}), digest({"a": ones})}) == 3
