"""Tangram's composition against brute force: all islands in all orders, all slices, all plans."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import combinations, pairwise, permutations, product

import numpy as np
import pytest

from heterps_agents.systems.tangram.composition import best_pipeline
from heterps_agents.systems.tangram.kernels import END, FILL, GROUPS, ROOM, SHARE, STEADY
from heterps_agents.systems.tangram.partial_plans import (
    Islands,
    PartialPlans,
    islands_of,
    partial_plans,
    stages_of,
)
from heterps_configs.documents.job import Strategy
from heterps_envs.closed_form.formula import FITS, evaluate
from heterps_envs.closed_form.placement import encode
from heterps_envs.options import options_of
from heterps_envs.problem import Problem
from tests.uneven_problems import MakeProblem

AGAIN = Strategy(recompute="auto")


def small_problem(
    make_problem: MakeProblem,
    rng: np.random.Generator,
    num_layers: int,
    memory: tuple[float, float] = (0.25, 0.8),
) -> Problem:
    """Some of the ten uneven layers in any order, on two or three islands with unlike links."""
    problem = make_problem(
        counts=tuple(int(count) for count in rng.integers(1, 4, 3)),
        memory=float(rng.uniform(*memory)),
        bandwidth_bytes_per_s=float(10 ** rng.uniform(8, 11)),
        global_batch_size=int(rng.integers(2, 12)),
        schedule=str(rng.choice(["1f1b", "gpipe"])),
    )
    layers = problem.profile.layers
    chosen = [layers[index] for index in rng.permutation(len(layers))[:num_layers]]
    profile = problem.profile.changed(
        layers=[layer.changed(name=f"l{index}") for index, layer in enumerate(chosen)]
    )
    return Problem(profile, problem.cluster, problem.job)


def pipelines(islands: Islands, plans: PartialPlans) -> Iterator[tuple[int, ...]]:
    """All of them, whether they have memory or not."""
    by_slice: dict[tuple[int, int, int], list[int]] = {}
    for index in range(len(plans.island)):
        key = int(plans.island[index]), int(plans.first_cut[index]), int(plans.end_cut[index])
        by_slice.setdefault(key, []).append(index)
    last = len(islands.cuts) - 1
    for number in range(1, islands.kernel.num_classes + 1):
        for order in permutations(range(islands.kernel.num_classes), number):
            for inner in combinations(range(1, last), number - 1):
                cuts = (0, *inner, last)
                slices = zip(order, cuts[:-1], cuts[1:], strict=True)
                yield from product(*(by_slice.get(each, []) for each in slices))


def step_s(islands: Islands, plans: PartialPlans, chosen: tuple[int, ...]) -> float:
    """By the words of the docstring; inf without memory."""
    costs, groups_behind = plans.costs[list(chosen)], 0
    for own in costs[::-1]:
        if groups_behind > -own[ROOM]:
            return math.inf
        groups_behind += own[GROUPS]
    fill, steady = costs[:, FILL].sum(), costs[:, STEADY].max()
    for front, behind in pairwise(chosen):
        one, two = plans.island[front], plans.island[behind]
        num_bytes = islands.kernel.output_bytes[islands.cuts[plans.end_cut[front]] - 1]
        transfer = num_bytes * islands.inverse_bandwidth[one, two]
        fill += 2 * (islands.latency_s[one, two] + transfer)
        steady = max(steady, (plans.costs[front, SHARE] - 1) * transfer)
    return float(fill + steady + costs[:, END].max())


@pytest.mark.slow
def test_nothing_is_better_than_what_is_composed(make_problem: MakeProblem) -> None:
    rng, lengths = np.random.default_rng(0), list[int]()
    for _ in range(30):
        problem = small_problem(make_problem, rng, int(rng.integers(3, 7)))
        islands = islands_of(problem, options_of(problem, AGAIN))
        every, kept = partial_plans(islands, only_undominated=False), partial_plans(islands)
        assert len(kept.island) < len(every.island)
        least = min(
            (step_s(islands, every, e) for e in pipelines(islands, every)), default=math.inf
        )
        found = best_pipeline(islands, kept)
        if found is None:
            assert math.isinf(least)
            lengths.append(0)
            continue
        assert found.step_time_s == pytest.approx(least, rel=1e-9)
        assert step_s(islands, kept, found.plans) == pytest.approx(found.step_time_s, rel=1e-9)
        lengths.append(len(found.plans))
    assert set(lengths) == {0, 1, 2, 3}


@pytest.mark.slow
def test_a_pipeline_has_memory_if_its_stages_have_it_by_the_closed_form(
    make_problem: MakeProblem,
) -> None:
    rng, fitting = np.random.default_rng(5), list[bool]()
    for _ in range(8):
        problem = small_problem(make_problem, rng, 4, memory=(0.12, 0.25))
        options = options_of(problem, AGAIN)
        islands = islands_of(problem, options)
        plans = partial_plans(islands, only_undominated=False)
        some = list(pipelines(islands, plans))
        for index in rng.permutation(len(some))[:60]:
            stages = [s for plan in some[index] for s in stages_of(islands, plans, plan)]
            _, _, verdict = evaluate(encode(stages, options)[None], islands.kernel)
            is_fitting = math.isfinite(step_s(islands, plans, some[index]))
            assert (verdict[0] == FITS) == is_fitting
            fitting.append(is_fitting)
    assert 0.2 < np.mean(fitting) < 0.95


def test_equal_islands_are_taken_in_turn(make_problem: MakeProblem) -> None:
    """Which of them is which changes nothing: one order of them is enough."""
    problem = make_problem(counts=(2, 3, 2))
    islands = islands_of(problem, options_of(problem, AGAIN))
    plans = partial_plans(islands)
    twin = islands._replace(
        kernel=islands.kernel._replace(num_classes=2),
        latency_s=np.full((2, 2), 1e-5),
        inverse_bandwidth=np.full((2, 2), 1e-9),
    )
    own = plans.island == 0
    twice = PartialPlans(
        np.repeat([0, 1], own.sum()),
        np.tile(plans.first_cut[own], 2),
        np.tile(plans.end_cut[own], 2),
        np.tile(plans.shape[own], (2, 1)),
        np.tile(plans.costs[own], (2, 1)),
        (plans.offsets[0], plans.offsets[0] + own.sum()),
    )
    found = best_pipeline(twin, twice)
    assert found is not None
    least = min(step_s(twin, twice, each) for each in pipelines(twin, twice))
    assert found.step_time_s == pytest.approx(least)
    # The first of them is the one that was taken first: at the back.
    assert [int(twice.island[plan]) for plan in found.plans] == [1, 0]
