"""The exact solver, its bounds and the searches on problems with several options for each class."""

import math
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.trust.hostile_problems import draw_problem
from heterps_agents.exact.solve import solve
from heterps_agents.exact.state import can_be_reached, state_shape
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.question import Question
from heterps_agents.interface.registry import planner_named
from heterps_agents.search.annealing import annealed_code
from heterps_agents.search.cross_entropy import cross_entropy_code
from heterps_agents.search.genetic import genetic_code
from heterps_agents.search.greedy import greedy_code
from heterps_agents.search.random import random_code
from heterps_configs.documents.cluster import Link
from heterps_configs.documents.job import Strategy
from heterps_configs.documents.plan import Bound
from heterps_configs.errors import InfeasibleError
from heterps_envs.certificates.plan import check_certificate
from heterps_envs.closed_form.bounds import cheapest_step, lower_bound
from heterps_envs.closed_form.formula import FITS, evaluate
from heterps_envs.closed_form.kernel_tables import kernel_tables
from heterps_envs.closed_form.objective import Goal
from heterps_envs.closed_form.placement import (
    closed_form_of_plan_s,
    placement_of,
)
from heterps_envs.closed_form.replicas import provision_stages
from heterps_envs.cost_tables import CostTables
from heterps_envs.options import keeps_to, option_tables, options_of
from heterps_envs.problem import Problem
from heterps_envs.useful_options import dropped_columns, with_columns
from tests.agents.exact.test_solve import random_tables
from tests.envs.small_problems import all_codes, chain_problem, with_options, with_splits

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
    return all_codes(tables.num_layers, choices)


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


def test_bounds_look_only_at_states_that_stages_may_reach() -> None:
    kernel = kernel_tables(option_problem(3))
    sizes, kinds = kernel.devices_of_option, kernel.class_of_option
    used = np.array(list(np.ndindex(*state_shape(kernel))), np.int64)
    listed = {tuple(state) for state in used[can_be_reached(kernel, used)].tolist()}
    reached = set()
    for replicas in np.ndindex(*(kernel.device_count[kinds] // sizes + 1)):
        devices = np.bincount(kinds, np.array(replicas) * sizes, kernel.num_classes).astype(int)
        if (devices <= kernel.device_count).all():
            reached.add((*devices.tolist(), sum(replicas)))
    assert reached <= listed
    assert len(listed) < len(used) / 2


PLANNERS = (
    "exact", "auto", "ppo", "unlearned-beam", "annealing", "genetic", "cross-entropy", "greedy",
    "random", "even", "memory-proportional", "speed-proportional", "uniform-3d",
)  # fmt: skip


def open_problem(seed: int) -> Problem:
    """A few layers on a few devices, memory tight, with open degrees, recompute and sharding."""
    rng = np.random.default_rng(seed)
    size, num_classes = int(rng.integers(1, 4)), int(rng.integers(1, 3))
    parameters = [int(n) for n in rng.integers(10, 60, size)]
    kept = [float(n) for n in rng.integers(50, 400, size)]
    layer_bytes = max(16 * a + b for a, b in zip(parameters, kept, strict=True))
    problem = chain_problem(
        list(rng.uniform(0.5, 2, size)), list(rng.uniform(1, 4, size)),
        num_micro_batches=int(rng.integers(1, 6)), speeds=tuple(rng.uniform(0.5, 2, num_classes)),
        counts=(2,) * num_classes, parameters=parameters, activation_bytes=kept,
        output_bytes=[50.0] * (size - 1) + [0.0], optimizer_s=list(rng.uniform(0, 1, size)),
        memory_bytes=[int(layer_bytes * f) for f in rng.uniform(0.8, 4, num_classes)],
        link=Link(latency_s=0.05, bandwidth_bytes_per_s=float(rng.choice([200.0, 5000.0]))),
        schedule=str(rng.choice(["1f1b", "gpipe"])),
    )  # fmt: skip
    ways = Strategy(
        tensor_parallel=((), (1, 2), (2,))[int(rng.integers(3))],
        recompute=("auto", "full", "never")[int(rng.integers(3))],
        shard_state=("auto", "never")[int(rng.integers(2))],
    )
    return replace(with_splits(problem), strategy=ways)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_what_planners_claim_of_plans_with_options_holds_against_brute_force(seed: int) -> None:
    problem = open_problem(seed)
    options = options_of(problem, problem.strategy)
    tables = option_tables(problem, options)
    codes = every_code(tables)
    step_time_s = evaluate(codes, kernel_tables(tables))[0]
    best_s, taken_s, bounds = float(step_time_s.min()), dict[str, float](), dict[str, Bound]()
    for name in PLANNERS:
        try:
            plan = planner_named(name).plan(problem, Budget(300))
        except InfeasibleError:
            continue
        placement = placement_of(problem, plan)
        assert keeps_to(plan, problem.strategy)
        if placement is None:  # an even plan with replicas on unlike devices
            assert (name in ("auto", "uniform-3d"), plan.bound.gap) == (True, None)
            continue
        assert check_certificate(problem, plan).problems == ()
        taken_s[name] = closed_form_of_plan_s(problem, plan, placement)
        bounds[name] = plan.bound
    assert ("exact" in taken_s) == np.isfinite(best_s)
    if "exact" in taken_s:
        assert taken_s["exact"] == pytest.approx(best_s, rel=1e-9)
        assert bounds["exact"].status == "proven"
    # Even plans may fit by the simulator alone.
    least_s = min([best_s, *taken_s.values()])
    for name, bound in bounds.items():
        if bound.status != "proven":
            assert (bound.step_time_s or 0.0) <= least_s * (1 + 1e-9), name
        if bound.gap is not None and bound.step_time_s is not None:
            assert taken_s[name] <= bound.step_time_s * (1 + bound.gap) * (1 + 1e-9), name


def test_an_optimum_that_lost_digits_beside_layers_of_years_is_not_called_proven() -> None:
    # Sums over layers begin with eight years: what a step really takes is below the "optimum".
    problem = draw_problem(500, 13296)
    plan = planner_named("exact").plan(problem, Budget())
    placement = placement_of(problem, plan)
    assert placement is not None
    assert plan.bound.step_time_s is not None
    assert plan.bound.step_time_s <= closed_form_of_plan_s(problem, plan, placement) * (1 + 1e-9)
