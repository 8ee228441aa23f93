"""The exact solver, its bounds and the searches on problems with several options for each class."""

import itertools
import math

import numpy as np
import pytest

from heterps_agents.exact.solve import solve
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.question import Question
from heterps_agents.search.annealing import annealed_code
from heterps_agents.search.cross_entropy import cross_entropy_code
from heterps_agents.search.genetic import genetic_code
from heterps_agents.search.greedy import greedy_code
from heterps_agents.search.random import random_code
from heterps_envs.closed_form.bounds import cheapest_step, lower_bound
from heterps_envs.closed_form.formula import FITS, evaluate, kernel_tables
from heterps_envs.closed_form.objective import Goal
from heterps_envs.closed_form.placement import PlacedStage, encode
from heterps_envs.closed_form.replicas import provision_stages
from heterps_envs.cost_tables import CostTables
from heterps_envs.useful_options import dropped_columns, with_columns
from tests.agents.exact.test_solve import every_cut, random_tables
from tests.envs.small_problems import with_options

LARGEST_SPACE = 20_000


def option_problem(seed: int) -> CostTables:
    """A small problem with options: memory tight or not, both schedules."""
    rng = np.random.default_rng(seed + 5000)
    while True:
        num_layers = int(rng.integers(2, 5))
        counts = [int(n) for n in rng.integers(1, 5, int(rng.integers(1, 3)))]
        tables = with_options(
            random_tables(
                seed, num_layers, counts, num_micro_batches=int(rng.integers(1, 9)),
                memory=float(rng.choice([0.8, 1.2, 2.0, 10.0])),
                link=float(rng.choice([0.1, 1.0])), is_gpipe=bool(rng.random() < 0.3),
            ),
            seed,
            actions=("keep", "recompute", "offload") if seed % 2 else ("keep", "recompute"),
        )  # fmt: skip
        if (
            sum(tables.most_replicas) * (1 + sum(tables.most_replicas)) ** (num_layers - 1)
            < LARGEST_SPACE
        ):
            return tables


def every_code(tables: CostTables) -> np.ndarray:
    """All codes, those with too many devices included; every replica has a micro-batch."""
    choices = [
        (option, replicas)
        for option, most in enumerate(tables.most_replicas)
        for replicas in range(1, min(int(most), tables.num_micro_batches) + 1)
    ]
    return np.array(
        [
            encode([PlacedStage(*layers, *each) for layers, each in zip(cut, choice, strict=True)])
            for cut in every_cut(tables.num_layers)
            for choice in itertools.product(choices, repeat=len(cut))
        ]
    )


@pytest.mark.slow
@pytest.mark.parametrize("first_seed", range(0, 300, 50))
def test_exact_equals_brute_force_in_both_objectives(first_seed: int) -> None:
    feasible = 0
    for seed in range(first_seed, first_seed + 50):
        tables = option_problem(seed)
        kernel = kernel_tables(tables)
        step_time_s, price, _ = evaluate(every_code(tables), kernel)
        best_s, cheapest = step_time_s.min(), (price * step_time_s).min()
        result, by_price = solve(kernel), solve(kernel, Goal(is_price=True))
        assert result.step_time_s == pytest.approx(best_s, rel=1e-9), seed
        if result.code is None:
            assert result.status == by_price.status == "infeasible"
            continue
        feasible += 1
        assert evaluate(result.code[None], kernel)[2][0] == FITS
        assert by_price.price_usd_per_hour * by_price.step_time_s == pytest.approx(
            cheapest, rel=1e-9
        ), seed
        assert lower_bound(tables) <= best_s * (1 + 1e-9)
        assert cheapest_step(tables) <= cheapest * (1 + 1e-9)
    assert feasible > 20


@pytest.mark.parametrize(
    "search", [greedy_code, random_code, annealed_code, genetic_code, cross_entropy_code]
)
def test_searches_place_with_options_and_are_no_better_than_the_optimum(search: object) -> None:
    found = 0
    for seed in range(12):
        tables = option_problem(seed)
        kernel = kernel_tables(tables)
        question = Question(tables, kernel, Goal(), Budget(evaluations=3000), seed)
        code = search(question)  # type: ignore[operator]
        best_s = solve(kernel).step_time_s
        if code is None or math.isinf(Goal().cost(code, kernel)):
            continue
        found += 1
        assert best_s * (1 - 1e-9) <= Goal().cost(code, kernel) <= best_s * 3
    assert found >= 5


def test_options_that_no_placement_needs_are_left_out_and_change_no_optimum() -> None:
    num_dropped = 0
    for seed in range(60):
        tables = option_problem(seed)
        dropped = dropped_columns(tables)
        kept = [index for index in range(tables.num_options) if index not in dropped]
        if not dropped or not kept:
            continue
        num_dropped += len(dropped)
        all_s, price, _ = evaluate(every_code(tables), kernel_tables(tables))
        fewer = with_columns(tables, kept)
        kernel = kernel_tables(fewer)
        assert solve(kernel).step_time_s == pytest.approx(all_s.min(), rel=1e-9), seed
        found = solve(kernel, Goal(is_price=True))
        cheapest = (price * all_s).min()
        assert found.price_usd_per_hour * found.step_time_s == pytest.approx(cheapest, rel=1e-9)
    assert num_dropped > 30


def test_replicas_of_groups_use_no_more_devices_than_there_are() -> None:
    tables = option_problem(3)
    kernel = kernel_tables(tables)
    largest = int(tables.stage_options.devices_of_option.argmax())
    stages = np.array([[tables.num_layers, largest, 1]], np.int64)
    provision_stages(kernel, stages, 1, Goal())
    assert 1 <= stages[0, 2] <= tables.most_replicas[largest]
