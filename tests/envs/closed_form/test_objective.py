"""The cost of a search: the closed form where a placement fits, graded where it does not."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterps_agents.search.annealing import move
from heterps_agents.search.genetic import draw_member
from heterps_configs.documents.job import Job
from heterps_envs.closed_form.formula import FITS, evaluate
from heterps_envs.closed_form.kernel_tables import kernel_tables
from heterps_envs.closed_form.objective import (
    DOES_NOT_FIT,
    MISSES_FLOOR,
    Goal,
    code_cost,
    limited_cost,
    read_stages,
    search_cost,
    write_code,
)
from heterps_envs.closed_form.placement import PlacedStage, encode
from heterps_envs.problem import Problem
from heterps_envs.problem_sets.chains import generate


@st.composite
def placements(draw: st.DrawFn) -> tuple[PlacedStage, ...]:
    lengths = draw(st.lists(st.integers(1, 5), min_size=1, max_size=6))
    stops = np.cumsum(lengths)
    return tuple(
        PlacedStage(
            int(stop) - length, int(stop) - 1, draw(st.integers(0, 3)), draw(st.integers(1, 64))
        )
        for stop, length in zip(stops, lengths, strict=True)
    )


@given(placements())
def test_stages_and_codes_convert_without_loss(placement: tuple[PlacedStage, ...]) -> None:
    code = encode(placement)
    stages = np.empty((len(code), 3), np.int64)
    count = read_stages(code, stages)
    expected = [(s.last_layer + 1, s.device_class, s.replicas) for s in placement]
    assert [tuple(row) for row in stages[:count]] == expected
    again = np.zeros_like(code)
    write_code(stages, count, again)
    np.testing.assert_array_equal(again, code)


def test_cost_equals_the_closed_form_of_everything_that_fits() -> None:
    rng = np.random.default_rng(0)
    seen = 0
    for tables in generate(20, seed=3):
        kernel = kernel_tables(tables)
        for _ in range(200):
            cuts = rng.choice(kernel.num_layers - 1, rng.integers(0, 4), replace=False) + 1
            stops = [*sorted(int(cut) for cut in cuts), kernel.num_layers]
            code = encode(
                [
                    PlacedStage(start, stop - 1, int(rng.integers(kernel.num_classes)))
                    for start, stop in zip([0, *stops], stops, strict=False)
                ]
            )
            step_time_s, price, verdict = (value[0] for value in evaluate(code[None], kernel))
            cost = code_cost(code, kernel, Goal())
            if verdict != FITS:
                assert cost > DOES_NOT_FIT
                continue
            seen += 1
            assert cost == pytest.approx(step_time_s, rel=1e-12)
            dollars = code_cost(code, kernel, Goal(is_price=True))
            assert dollars == pytest.approx(price * step_time_s, rel=1e-6)
            late = code_cost(code, kernel, Goal(is_price=True, floor_s=step_time_s / 2))
            assert late == pytest.approx(2 * MISSES_FLOOR)
    assert seen > 100


def test_the_cost_of_what_does_not_fit_grows_with_what_is_missing(
    make_problem: Callable[..., Problem],
) -> None:
    kernel = kernel_tables(make_problem(counts=(1, 1, 1), memory=0.3).tables)
    whole = encode([PlacedStage(0, 9, 1)])
    halves = encode([PlacedStage(0, 4, 1), PlacedStage(5, 9, 0)])
    many = encode([PlacedStage(0, 9, 1, replicas=3)])
    costs = [code_cost(code, kernel, Goal()) for code in (halves, whole, many)]
    assert DOES_NOT_FIT < costs[0] < costs[1] < costs[2]


def test_a_floor_is_kept_by_a_placement_that_just_reaches_it() -> None:
    goal = Goal.of(Job(global_batch_size=16, min_throughput_samples_per_s=16 / 0.3))
    assert goal.floor_s >= 0.3
    assert goal.floor_s == pytest.approx(0.3)
    assert Goal.of(Job()) == Goal(is_price=False, floor_s=math.inf)


@given(
    seed=st.integers(0, 10**6),
    is_price=st.booleans(),
    slack=st.floats(0.3, 3.0),
    floor_share=st.floats(0.5, 2.0) | st.just(math.inf),
)
def test_a_limit_changes_no_cost_below_it_and_what_is_above_stays_above(
    seed: int, is_price: bool, slack: float, floor_share: float
) -> None:
    (tables,) = generate(1, seed=seed % 50, layers=(4, 12), classes=(1, 4))
    kernel, rng = kernel_tables(tables), np.random.default_rng(seed)
    stages, used = (
        np.empty((kernel.num_layers, 3), np.int64),
        np.empty(kernel.num_classes, np.int64),
    )
    count = draw_member(kernel, rng, stages, used)
    limit = slack * search_cost(stages, count, kernel, used, Goal(is_price))
    goal = Goal(is_price, floor_share * search_cost(stages, count, kernel, used, Goal()))
    for _ in range(10):
        count = move(kernel, rng, stages, count, used)
        cost = search_cost(stages, count, kernel, used, goal)
        for each in (limit, MISSES_FLOOR * slack, DOES_NOT_FIT * slack):
            found = limited_cost(stages, count, kernel, used, goal, each)
            assert found == cost if cost <= each else each < found <= cost
