"""The learned placer on one problem: real placements, prefixes of one search, exact windows."""

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps_agents.exact.solve import solve
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.question import Question
from heterps_agents.learned.best_placements import POLISH_ROUND
from heterps_agents.learned.efforts import effort_named, efforts
from heterps_agents.learned.policy import Policy
from heterps_agents.learned.search import learned_code
from heterps_agents.learned.window_labels import labels_for
from heterps_agents.learned.windows import WindowProblem, improve_windows
from heterps_agents.search.annealing import polish
from heterps_agents.search.greedy import greedy_code
from heterps_envs.closed_form.kernel_tables import KernelTables, kernel_tables
from heterps_envs.closed_form.objective import Goal, read_stages, search_cost, write_code
from heterps_envs.cost_tables import CostTables
from heterps_envs.environments.stage.packed import pack_problems
from heterps_envs.problem_sets.chains import generate

SIZES: list[dict[str, Any]] = [
    {},
    {"layers": (2, 6), "classes": (1, 2)},
    {"classes": (6, 12), "count_range": (1, 6)},
    {"layers": (60, 90)},
]
GOALS = [Goal(), Goal(is_price=True)]


def greedy_start(tables: CostTables, kernel: KernelTables, goal: Goal) -> Any:
    return greedy_code(Question(tables, kernel, goal, Budget()))


@pytest.mark.parametrize("goal", GOALS)
@pytest.mark.parametrize("sizes", SIZES)
def test_placements_are_never_worse_than_their_start(
    random_policy: Policy, sizes: dict[str, Any], goal: Goal
) -> None:
    for tables in generate(3, seed=41, **sizes):
        kernel = kernel_tables(tables)
        start = greedy_start(tables, kernel, goal)
        code = learned_code(
            random_policy,
            Question(tables, kernel, goal, Budget(), start=start),
            effort_named("fast"),
        )
        if start is not None:
            assert code is not None
            assert goal.cost(code, kernel) <= goal.cost(start, kernel)


@pytest.mark.parametrize("sizes", SIZES)
def test_policies_that_know_prices_never_lose_their_start_and_keep_the_floor(
    random_price_policy: Policy, sizes: dict[str, Any]
) -> None:
    for tables in generate(3, seed=43, **sizes):
        kernel = kernel_tables(tables)
        start = greedy_start(tables, kernel, Goal())
        if start is None:
            continue
        goal = Goal(is_price=True, floor_s=1.2 * Goal().cost(start, kernel))
        effort = effort_named("fast")
        code = learned_code(
            random_price_policy, Question(tables, kernel, goal, Budget(), start=start), effort
        )
        assert code is not None
        assert goal.cost(code, kernel) <= goal.cost(start, kernel)


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10_000), st.lists(st.integers(1, 3000), min_size=2, max_size=3))
def test_larger_budgets_never_cost_policies_that_know_prices(
    random_price_policy: Policy, seed: int, evaluations: list[int]
) -> None:
    tables = generate(1, seed, layers=(4, 12))[0]
    kernel, costs = kernel_tables(tables), []
    goal = Goal(is_price=True)
    for budget in sorted(evaluations):
        code = learned_code(
            random_price_policy,
            Question(tables, kernel, goal, Budget(budget)),
            effort_named("fast"),
        )
        costs.append(np.inf if code is None else goal.cost(code, kernel))
    assert costs == sorted(costs, reverse=True)


@settings(max_examples=15, deadline=None)
@given(
    st.integers(0, 10_000),
    st.sampled_from(sorted(efforts())),
    st.booleans(),
    st.lists(st.integers(1, 3000), min_size=2, max_size=4),
)
def test_larger_budgets_never_lose_and_equal_ones_are_equal(
    random_policy: Policy, seed: int, effort: str, is_price: bool, budgets: list[int]
) -> None:
    tables = generate(1, seed, layers=(4, 14), classes=(1, 3))[0]
    kernel, goal = kernel_tables(tables), Goal(is_price)
    costs = []
    for evaluations in [*sorted(budgets), max(budgets)]:
        budget = Budget(evaluations)
        code = learned_code(
            random_policy, Question(tables, kernel, goal, budget), efforts()[effort]
        )
        assert budget.evaluations_used <= evaluations
        costs.append(np.inf if code is None else goal.cost(code, kernel))
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] == costs[-2]


def test_a_floor_is_kept_for_the_price_and_without_it_cheap_is_slow(
    random_policy: Policy,
) -> None:
    kept = 0
    for tables in generate(6, seed=43):
        kernel, optimum = kernel_tables(tables), solve(kernel_tables(tables))
        if optimum.code is None:
            continue
        goal = Goal(is_price=True, floor_s=1.3 * optimum.step_time_s)
        code = learned_code(
            random_policy, Question(tables, kernel, goal, Budget()), effort_named("normal")
        )
        assert code is not None
        kept += goal.cost(code, kernel) < np.inf
        best = goal.cost(solve(kernel, goal).code, kernel)  # type: ignore[arg-type]
        assert goal.cost(code, kernel) >= best * (1 - 1e-9)
    assert kept >= 4


def improved(
    tables: CostTables, kernel: KernelTables, goal: Goal, code: Any, size: int
) -> tuple[float, float]:
    """What windows of a size say that a placement costs then, and what it costs."""
    packed = pack_problems([tables])
    stages = np.empty((kernel.num_layers + 1, 3), np.int64)
    used = np.empty(kernel.num_classes, np.int64)
    count = read_stages(code, stages)
    cost = search_cost(stages, count, kernel, used, goal)
    problem = WindowProblem(kernel, goal, packed.class_price[0], packed.value_prefix_s[0])
    labels = labels_for(50_000, kernel.num_layers, kernel.num_classes, kernel.num_options)
    count, better, _ = improve_windows(problem, stages, count, cost, size, labels, 1 << 60)
    assert better <= cost
    out = np.zeros_like(code)
    write_code(stages, count, out)
    return better, goal.cost(out, kernel)


@pytest.mark.parametrize("goal", GOALS)
def test_windows_say_what_their_placements_cost(goal: Goal) -> None:
    gains = 0
    for tables in generate(8, seed=44):
        kernel = kernel_tables(tables)
        start = greedy_start(tables, kernel, goal)
        if start is None:
            continue
        said, real = improved(tables, kernel, goal, start, 3)
        assert said == pytest.approx(real, rel=1e-9)
        gains += real < 0.999 * goal.cost(start, kernel)
    assert gains >= 3


@pytest.mark.parametrize("goal", GOALS)
def test_where_the_best_placement_has_few_stages_even_a_poor_policy_finds_the_optimum(
    random_policy: Policy, goal: Goal
) -> None:
    effort, swept = effort_named("high"), 0
    for tables in generate(12, seed=71, layers=(6, 14), classes=(2, 3)):
        kernel = kernel_tables(tables)
        code = learned_code(random_policy, Question(tables, kernel, goal, Budget()), effort)
        best = solve(kernel, goal).code
        assert code is not None
        assert best is not None
        if read_stages(code, np.empty((kernel.num_layers + 1, 3), np.int64)) <= effort.window:
            swept += 1
            assert goal.cost(code, kernel) <= goal.cost(best, kernel) * (1 + 1e-9)
    assert swept > 6


@pytest.mark.parametrize("goal", GOALS)
def test_a_window_of_all_stages_is_exact(goal: Goal) -> None:
    tried = 0
    for tables in generate(10, seed=45, layers=(4, 8), classes=(1, 3), count_range=(1, 2)):
        kernel = kernel_tables(tables)
        optimum = solve(kernel, goal)
        start = greedy_start(tables, kernel, goal)
        if optimum.code is None or start is None or np.isinf(goal.cost(start, kernel)):
            continue
        _, cost = improved(tables, kernel, goal, start, kernel.num_layers)
        assert cost == pytest.approx(goal.cost(optimum.code, kernel), rel=1e-6)
        tried += 1
    assert tried >= 5


def test_the_search_beats_its_start_as_much_as_annealing_does(random_policy: Policy) -> None:
    learned, annealed = [], []
    for tables in generate(8, seed=46):
        kernel = kernel_tables(tables)
        start = greedy_start(tables, kernel, Goal())
        if start is None:
            continue
        found = learned_code(
            random_policy,
            Question(tables, kernel, Goal(), Budget(), start=start),
            effort_named("normal"),
        )
        assert found is not None
        learned.append(Goal().cost(found, kernel))
        annealed.append(Goal().cost(polish(start, kernel, 2000, 0), kernel))
    assert np.mean(np.log(np.array(learned) / np.array(annealed))) < 0


def test_what_is_polished_at_the_end_is_never_worse_and_on_many_classes_better(
    random_policy: Policy,
) -> None:
    """Without learned scores there is much left to find."""
    effort = effort_named("fast")
    assert effort.polish_evaluations > 0
    ratios = []
    for tables in generate(6, seed=48, classes=(8, 12), layers=(40, 60), count_range=(2, 4)):
        kernel, costs = kernel_tables(tables), []
        plain = effort.changed(polish_evaluations=0)
        for own in (plain, effort):
            code = learned_code(random_policy, Question(tables, kernel, Goal(), Budget()), own)
            assert code is not None
            costs.append(Goal().cost(code, kernel))
        assert costs[1] <= costs[0]
        ratios.append(costs[1] / costs[0])
    assert np.mean(ratios) < 0.99


def test_rounds_of_the_polish_go_on_from_the_best_as_far_as_the_budget_allows(
    random_policy: Policy,
) -> None:
    one_round = effort_named("fast").changed(polish_evaluations=POLISH_ROUND)
    two_rounds = one_round.changed(polish_evaluations=2 * POLISH_ROUND)
    ratios = []
    for tables in generate(5, seed=49, classes=(10, 12), layers=(80, 100), count_range=(2, 4)):
        kernel, costs, spent = kernel_tables(tables), [], []
        # Beams are charged, too: twice a round's evaluations are too few for two rounds.
        for own, most in ((one_round, None), (two_rounds, 2 * POLISH_ROUND), (two_rounds, None)):
            budget = Budget(evaluations=most)
            code = learned_code(random_policy, Question(tables, kernel, Goal(), budget), own)
            assert code is not None
            costs.append(Goal().cost(code, kernel))
            spent.append(budget.evaluations_used)
        assert costs[2] <= costs[1] == costs[0]
        assert spent[0] == spent[1] <= 2 * POLISH_ROUND
        assert spent[2] >= spent[1] + POLISH_ROUND
        ratios.append(costs[2] / costs[0])
    assert min(ratios) < 1


def test_all_efforts_take_problems_of_one_layer_or_one_class(random_policy: Policy) -> None:
    for effort, tables in product(
        efforts().values(), generate(2, 47, layers=(1, 2), classes=(1, 1), count_range=(1, 1))
    ):
        kernel = kernel_tables(tables)
        code = learned_code(random_policy, Question(tables, kernel, Goal(), Budget()), effort)
        optimum = solve(kernel)
        assert (code is None) == (optimum.code is None)
