"""Crossover, and the members that a genetic algorithm begins with."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from heterps_agents.interface.planner import Budget
from heterps_agents.interface.question import Question
from heterps_agents.search.genetic import (
    LARGEST,
    SMALLEST,
    cross,
    draw_member,
    genetic_code,
    population_size,
)
from heterps_envs.closed_form.kernel_tables import kernel_tables
from heterps_envs.closed_form.objective import DOES_NOT_FIT, STEP_TIME, search_cost
from heterps_envs.problem_sets.chains import generate

Stages = NDArray[np.int64]


@st.composite
def parents(draw: st.DrawFn) -> tuple[Stages, Stages]:
    """Two placements of the same layers."""
    layers = draw(st.integers(1, 12))

    def placement() -> Stages:
        cuts = draw(st.sets(st.integers(1, layers - 1))) if layers > 1 else set()
        rows = [
            (stop, draw(st.integers(0, 2)), draw(st.integers(1, 3)))
            for stop in [*sorted(cuts), layers]
        ]
        stages = np.zeros((layers, 3), np.int64)
        stages[: len(rows)] = rows
        return stages

    return placement(), placement()


def by_layer(stages: Stages, count: int) -> list[tuple[int, int]]:
    """(class, replicas) of each layer."""
    out: list[tuple[int, int]] = []
    for stop, kind, replicas in stages[:count].tolist():
        out += [(kind, replicas)] * (stop - len(out))
    return out


def stages_of(stages: Stages) -> int:
    return int(np.argmax(stages[:, 0] == len(stages))) + 1


@given(pair=parents(), seed=st.integers(0, 1000))
def test_a_child_has_its_mothers_front_and_its_fathers_back(
    pair: tuple[Stages, Stages], seed: int
) -> None:
    mother, father = pair
    child = np.zeros_like(mother)
    count = cross(np.random.default_rng(seed), mother, stages_of(mother), father, child)
    stops = child[:count, 0].tolist()
    assert stops == sorted(set(stops))
    assert stops[-1] == len(mother)
    mine = by_layer(child, count)
    front, back = by_layer(mother, stages_of(mother)), by_layer(father, stages_of(father))
    cuts = range(1, len(mother) + 1)
    assert any(mine == front[:cut] + back[cut:] for cut in cuts)


@given(seed=st.integers(0, 1000))
def test_equal_parents_have_children_like_them(seed: int) -> None:
    parent = np.zeros((6, 3), np.int64)
    parent[:3] = [(2, 0, 1), (3, 0, 1), (6, 1, 2)]
    child = np.zeros_like(parent)
    assert cross(np.random.default_rng(seed), parent, 3, parent, child) == 3
    np.testing.assert_array_equal(child[:3], parent[:3])


def test_members_cover_all_layers_and_fit_where_draws_do() -> None:
    rng, fits = np.random.default_rng(0), 0
    for tables in generate(20, seed=2):
        kernel = kernel_tables(tables)
        stages, used = np.zeros((tables.num_layers, 3), np.int64), np.zeros(8, np.int64)
        used = used[: tables.num_classes]
        count = draw_member(kernel, rng, stages, used)
        assert stages[count - 1, 0] == tables.num_layers
        fits += search_cost(stages, count, kernel, used, STEP_TIME) < DOES_NOT_FIT
    assert fits >= 15


def test_known_placements_are_members_from_the_beginning() -> None:
    for tables in generate(5, seed=3):
        kernel = kernel_tables(tables)
        question = Question(tables, kernel, STEP_TIME, Budget(20_000))
        best = genetic_code(question)
        if best is None:
            continue
        found = genetic_code(question._replace(budget=Budget(1), seed=7, known=(best, best)))
        assert question.cost(found) <= question.cost(best)


def test_populations_grow_with_the_budget_within_limits() -> None:
    sizes = [population_size(evaluations) for evaluations in (1, 500, 1000, 10**6, None)]
    assert sizes == sorted(sizes)
    assert (sizes[0], sizes[-1]) == (SMALLEST, LARGEST)
