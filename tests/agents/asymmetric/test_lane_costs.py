"""The compiled formula of lanes beside the same one number at a time, on drawn plans."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from itertools import accumulate, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps_agents.asymmetric.estimates import Estimates
from heterps_agents.asymmetric.weave import Block, Group, Lane, Part, Weave
from heterps_configs.documents.cluster import Link
from heterps_envs.options import Memory
from heterps_envs.problem import Problem
from tests.agents.asymmetric.plain_formula import PlainFormula
from tests.uneven_problems import uneven_problem

NUM_LAYERS, MICRO_BATCHES = 10, 16
WAYS = ("forward_s", "backward_s")
MEMORIES: tuple[Memory, ...] = ("keep", "recompute")


@cache
def problem(schedule: str) -> Problem:
    """Eleven devices; inside one of their nodes messages back take another link."""
    found = uneven_problem(
        counts=(3, 5, 3), memory=2.0, schedule=schedule, global_batch_size=MICRO_BATCHES
    )
    first, second = found.cluster.nodes
    back = Link(latency_s=3e-4, bandwidth_bytes_per_s=2e9)
    nodes = (first, second.changed(reverse_link=back))
    return replace(found, cluster=found.cluster.changed(nodes=nodes))


def split(number: int, pieces: int, rng: random.Random) -> list[int]:
    """A number as a sum of positive ones."""
    edges = sorted(rng.sample(range(1, number), pieces - 1))
    return [b - a for a, b in pairwise([0, *edges, number])]


def drawn_lane(share: int, first: int, stop: int, most: int, rng: random.Random) -> Lane:
    """A lane of up to so many parts, without devices."""
    pieces = split(stop - first, rng.randint(1, min(most, stop - first)), rng)
    stops = accumulate(pieces, initial=first)
    return Lane(share, tuple(Part(at, (), rng.choice(MEMORIES)) for at in list(stops)[1:]))


def with_devices(lane: Lane, free: list[str], spare: int, rng: random.Random) -> Lane:
    """One device for each part; of the spare ones some take turns with it, or form a group."""
    parts = []
    for part in lane.parts:
        first = free.pop()
        groups: list[Group] = [(first,)]
        alike = [name for name in free if name.split("-")[0] == first.split("-")[0]]
        if alike and len(free) > spare and rng.random() < 0.6:
            free.remove(alike[0])
            is_group = lane.share < 2 or rng.random() < 0.5
            groups = [(first, alike[0])] if is_group else [(first,), (alike[0],)]
        parts.append(part._replace(groups=tuple(groups)))
    return lane._replace(parts=tuple(parts))


def drawn_weave(seed: int) -> Weave:
    """One block of up to three lanes of up to three parts, or two blocks of up to two of each."""
    rng = random.Random(seed)
    sizes = split(NUM_LAYERS, rng.randint(1, 2), rng)
    most, edges = (3, 2)[len(sizes) - 1], [0, *accumulate(sizes)]
    blocks = [
        [
            drawn_lane(share, first, stop, most, rng)
            for share in split(MICRO_BATCHES, rng.randint(1, most), rng)
        ]
        for first, stop in pairwise(edges)
    ]
    free, woven = list(problem("1f1b").device_named), list[Block]()
    rng.shuffle(free)
    left = sum(len(lane.parts) for lanes in blocks for lane in lanes)
    for lanes in blocks:
        own = []
        for lane in lanes:
            own.append(with_devices(lane, free, left, rng))
            left -= len(lane.parts)
        woven.append(tuple(own))
    layers = rng.choice([range(0), range(NUM_LAYERS), range(4)])
    return Weave(tuple(woven), frozenset(layers))


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 10**9), st.sampled_from(["1f1b", "gpipe"]), st.floats(0.3, 3.0))
def test_a_plan_takes_what_the_formula_says(seed: int, schedule: str, room: float) -> None:
    weave, asked = drawn_weave(seed), problem(schedule)
    expected = PlainFormula(asked, weave, room).step_s()
    assert Estimates(asked, room).step_s(weave) == pytest.approx(expected, rel=1e-11)


def test_one_estimate_does_not_depend_on_those_before_it() -> None:
    """What is kept of other plans, and tables that grow with them, change nothing."""
    shared = Estimates(problem("1f1b"), 2.0)
    for seed in range(100):
        weave = drawn_weave(seed)
        assert shared.step_s(weave) == Estimates(problem("1f1b"), 2.0).step_s(weave)


@given(st.integers(0, 10**9))
def test_a_lane_takes_its_way_and_then_what_its_slowest_part_does(seed: int) -> None:
    asked, weave = problem("1f1b"), drawn_weave(seed)
    number = len(weave.blocks) - 1
    plain, block = PlainFormula(asked, weave, 1.0), weave.blocks[number]
    fill_s, each_s = Estimates(asked).lane_rates_s(block, weave.starts[number])
    for lane, parts in enumerate(each.parts for each in block):
        ways = [plain.way_s(number, lane, way, 0, len(parts)) for way in WAYS]
        assert fill_s[lane] == pytest.approx(sum(ways))
        slowest = max(
            sum(plain.taken(piece, way) for way in WAYS) / piece.replicas
            for piece in plain.pieces
            if (piece.block, piece.lane) == (number, lane)
        )
        assert each_s[lane] == pytest.approx(slowest)
