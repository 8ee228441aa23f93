"""Fixtures of Oobleck and Malleus: what their systems found, and what ours finds.

python benchmarks/online/online.py --only fixtures
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from benchmarks.agent.section import TableRows
from benchmarks.online.section import SectionResult, Target
from benchmarks.shared.row_store import Settings
from heterps_agents.systems.malleus.memory import StageMemory
from heterps_agents.systems.malleus.plans import (
    UniformPlan,
    proportional_bound,
    uniform_seconds,
)
from heterps_agents.systems.malleus.shares import split_least
from heterps_agents.systems.malleus.straggler import replan_stragglers
from heterps_agents.systems.oobleck.recovery import Group, RecoveryUnavailable, recover_groups
from heterps_agents.systems.oobleck.regroup import regroup
from heterps_agents.systems.oobleck.templates import (
    best_template,
    least_nodes,
    share_micro_batches,
    template_sets,
)

TITLE = "Published fixtures of recovery and stragglers"
TARGETS = [
    Target("fixtures of Oobleck and Malleus with another objective", "fixtures_missed", 0),
]
NOTE = (
    "What the systems' own code gives (SOSP 2023 and its rewrite of 2026; arXiv 2410.13333). "
    "Objectives are compared: several splits can reach one. Bounds are rounded as published."
)
Value = float | str


class Fixture(NamedTuple):
    """A published case.

    Attributes:
        published: Its objective, or the groups that are left.
        found: The same of ours.
        digits: After the point, as published.
    """

    system: str
    case: str
    published: Value
    found: Value
    digits: int = 2

    @property
    def is_equal(self) -> bool:
        """As far as the published number goes."""
        if isinstance(self.published, str) or isinstance(self.found, str):
            return self.published == self.found
        return abs(self.published - self.found) <= 0.5 * 10.0**-self.digits + 1e-9


def run(settings: Settings) -> SectionResult:
    """All fixtures; they take less than a second."""
    fixtures = [*_templates(), *_regrouped(), *_recovered(), *_stragglers()]
    rows = [
        {
            "system": each.system,
            "case": each.case,
            # As text: a table would round numbers to three places.
            "published": _text(each.published, each.digits),
            "ours": _text(each.found, each.digits),
            "equal": "yes" if each.is_equal else "no",
        }
        for each in fixtures
    ]
    missed = sum(not each.is_equal for each in fixtures)
    summary = {"fixtures": len(fixtures), "fixtures_missed": missed}
    return SectionResult([TableRows("fixtures", TITLE, NOTE, rows)], summary, None)


def _templates() -> Iterator[Fixture]:
    for weights, stages, published in (
        ([2, 3, 4], 2, 43),
        ([1, 2, 3, 4, 5, 6], 3, 117),
        ([1] * 24 + [6], 4, 148),
    ):
        case = f"template of {len(weights)} layers, {stages} stages: iteration time"
        yield Fixture("Oobleck", case, published, best_template(weights, stages).iteration_s)
    for nodes, first, last, ways in (
        (13, 2, 7, 17), (8, 2, 4, 4), (14, 2, 5, 13), (30, 2, 8, 358), (16, 2, 8, 40),
        (13, 3, 7, 6),
    ):  # fmt: skip
        found = sum(1 for _ in template_sets(nodes, range(first, last + 1)))
        case = f"sets of templates of {first} to {last} nodes for {nodes} nodes"
        yield Fixture("Oobleck", case, ways, found)
    for seconds, batch, published in (([4, 3], 70, 120), ([6, 4, 4, 3], 64, 66)):
        shares = share_micro_batches([_times(each) for each in seconds], batch)
        slowest = max(t * n for t, n in zip(seconds, shares, strict=True))
        case = f"{batch} micro-batches for pipelines of {', '.join(map(str, seconds))}: slowest"
        yield Fixture("Oobleck", case, published, slowest)
    for devices, memory, layers, published in (
        (1, 32, 64, 2), (1, 16, 64, 4), (1, 16, 128, 8), (4, 16, 128, 2),
    ):  # fmt: skip
        found = least_nodes([1024] * layers, devices * 1024 * 6 * memory)
        case = f"least nodes with {devices} x {memory} units of memory for {layers} layers"
        yield Fixture("Oobleck", case, published, found)


def _times(seconds: float) -> Callable[[int], float]:
    return lambda number: seconds * number


def _regrouped() -> Iterator[Fixture]:
    before = [[0, 1], [2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12, 13]]
    for lost, after in (
        ([2], [[0, 1], [3, 4], [5, 6, 7, 8], [9, 10, 11, 12, 13]]),
        ([6, 8], [[0, 1], [2, 3, 4], [5, 7], [9, 10, 11, 12, 13]]),
        ([10, 11], [[0, 1], [2, 3, 4], [5, 6, 7, 8], [9, 12, 13]]),
        ([1, 3, 4], [[0, 13], [2, 12], [5, 6, 7, 8], [9, 10, 11]]),
        ([2, 4, 6, 7, 8], [[0, 1], [3, 13], [5, 12], [9, 10, 11]]),
        ([*range(1, 12)], [[0, 12, 13]]),
        ([1, 2, 3, 5, 6, 7, 9, 10, 11], [[0, 4], [8, 12, 13]]),
    ):
        found = regroup(before, lost, lambda group: len(group) >= 2)
        case = f"groups after losing {_words(lost)}"
        yield Fixture("Oobleck", case, _groups(after), _groups(found))


def _recovered() -> Iterator[Fixture]:
    """The rewrite of 2026: what stays in place under its identity."""
    three = [Group(k, tuple(f"{k}{i}" for i in range(3))) for k in "abc"]
    two = [Group(k, tuple(f"{k}{i}" for i in range(2))) for k in "abc"]
    borrowed = recover_groups(
        three[:2], {"a0", "b0", "b1", "b2"}, _even(2, 3), 4, 1,
        {"a0": 10, "b0": 100, "b1": 1, "b2": 50},
    )  # fmt: skip
    yield Fixture("Oobleck 2026", "borrow: bytes in place", 160, borrowed.retained_bytes)
    merged = recover_groups(
        two, {"a0", "b0", "c0", "c1"}, _even(2, 4), 4, 1, {"a0": 1, "b0": 100, "c0": 20, "c1": 20}
    )
    name = next(group.identity for group in merged.groups if "a0" in group.nodes)
    yield Fixture("Oobleck 2026", "merge: bytes in place", 140, merged.retained_bytes)
    yield Fixture("Oobleck 2026", "merge: identity that stays", "b", name)
    survivors = {"a0", "a1", "b0", "b1", "c0", "c1", "c2"}
    simple = recover_groups(three, survivors, _even(2, 3), 6, 2)
    rules = " + ".join(simple.rules)
    yield Fixture("Oobleck 2026", "two losses in two pipelines: rules", "simple", rules)
    yield Fixture("Oobleck 2026", "two losses in two pipelines: moved", 0, simple.moved_nodes)
    joined = recover_groups(
        [Group("p0", ("b", "c")), Group("p1", ("d", "e"))], set("abcdef"), _even(2), 6, 2,
        {"b": 50, "c": 50, "d": 40, "e": 40},
    )  # fmt: skip
    yield Fixture("Oobleck 2026", "join: bytes in place", 180, joined.retained_bytes)
    try:
        recover_groups(two[:1], {"a0"}, _even(2), 2, 0)
        found = "a plan"
    except RecoveryUnavailable:
        found = "refused"
    yield Fixture("Oobleck 2026", "one node where two are needed", "refused", found)


def _even(*sizes: int) -> dict[int, Callable[[int], float]]:
    """Templates whose stages take two units; filling takes a turn for each stage but one."""

    def time_s(size: int) -> Callable[[int], float]:
        return lambda number: 2.0 * (number + size - 1)

    return {size: time_s(size) for size in sizes}


def _stragglers() -> Iterator[Fixture]:
    memory = StageMemory((2934, 2483, 2024, 1567), embedding=1200, extra=4500, limit=40536)
    nodes = [[f"{8 * node + index}" for index in range(8)] for node in range(2)]
    one = {"15": 5.0}
    five = {"0": 1.5, "5": 1.1, "11": 0.8, "12": 1.2, "15": 5.0}
    for case, ratios, published in (
        ("no straggler", {}, 256),
        ("GPU 15 five times slower", one, 288),
        ("five unlike GPUs", five, 297),
    ):
        plan = replan_stragglers(
            ratios, nodes, UniformPlan(2, 4, 2, 32, 64), memory,
        )  # fmt: skip
        yield Fixture("Malleus", f"{case}: plan", published, plan.seconds)
    uniform = uniform_seconds(one, UniformPlan(2, 4, 2, 32, 64))
    yield Fixture("Malleus", "GPU 15 five times slower: equal plan", 1280, uniform)
    bound = proportional_bound(one, 16, 256)
    yield Fixture("Malleus", "GPU 15 five times slower: bound", 269.47, bound)
    bound = proportional_bound(five, 16, 256)
    yield Fixture("Malleus", "five unlike GPUs: bound", 280.4, bound, digits=1)
    for slowdowns, total, slowest in (
        ((2, 1, 1, 1), 32, 10.0), ((2, 1.5, 1.2, 1), 32, 11.0), ((10, 8), 64, 288.0),
        ((11, 8), 64, 297.0),
    ):  # fmt: skip
        shares = split_least(slowdowns, total)
        found = max(y * n for y, n in zip(slowdowns, shares, strict=True))
        case = f"{total} units for slow-downs {', '.join(f'{y:g}' for y in slowdowns)}: slowest"
        yield Fixture("Malleus", case, slowest, found)


def _text(value: Value, digits: int) -> str:
    return value if isinstance(value, str) else f"{value:.{digits}f}".rstrip("0").rstrip(".")


def _words(numbers: Sequence[int]) -> str:
    """Runs of three and more as a range."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    parts = [[f"{run[0]}-{run[-1]}"] if len(run) > 2 else map(str, run) for run in runs]
    return " ".join(word for part in parts for word in part)


def _groups(groups: Sequence[Sequence[int]]) -> str:
    return " | ".join(_words(group) for group in sorted(map(sorted, groups)))
