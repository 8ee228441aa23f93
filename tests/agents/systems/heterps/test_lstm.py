"""HeterPS's LSTM and the PPO from the shelf: what they learn, spend and promise."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
import torch

from heterps_agents.exact.solve import solve
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.question import Question, Search
from heterps_agents.interface.registry import (
    SECONDS_PER_LAYER,
    SECONDS_TO_START,
    planner_names,
    predicted_training_s,
)
from heterps_agents.search.layer_ppo import layer_ppo_code
from heterps_agents.systems.heterps.lstm import (
    MISFIT_REWARD,
    MISSED_REWARD,
    LayerSequence,
    layer_features,
    lstm_code,
    reward_of,
)
from heterps_envs.closed_form.kernel_tables import KernelTables, kernel_tables
from heterps_envs.closed_form.objective import DOES_NOT_FIT, MISSES_FLOOR, Goal
from heterps_envs.closed_form.placement import decode
from heterps_envs.cost_tables import CostTables
from heterps_envs.problem_sets.chains import generate

SEARCHES: dict[str, Search] = {"heterps-lstm": lstm_code, "layer-ppo": layer_ppo_code}


@pytest.fixture(scope="module")
def chain() -> tuple[CostTables, KernelTables, float]:
    """A small problem that each of the two has placements for, and its shortest step time."""
    for tables in generate(20, seed=9, layers=(5, 6), classes=(2, 2), count_range=(2, 3)):
        kernel = kernel_tables(tables)
        code = solve(kernel).code
        if (
            code is not None
            and len(decode(code)) == 2
            and decode(code)[0].device_class != decode(code)[1].device_class
        ):
            return tables, kernel, Goal().cost(code, kernel)
    raise AssertionError("no such problem was drawn")


@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.parametrize("is_price", [False, True])
def test_budgets_are_kept_and_equal_seeds_give_equal_codes(
    name: str, is_price: bool, chain: tuple[CostTables, KernelTables, float]
) -> None:
    tables, kernel, best_s = chain
    goal = Goal(is_price=True, floor_s=3 * best_s) if is_price else Goal()
    budgets = [Budget(evaluations=150) for _ in range(2)]
    codes = [SEARCHES[name](Question(tables, kernel, goal, budget, 3)) for budget in budgets]
    assert [budget.evaluations_used for budget in budgets] == [150, 150]
    assert codes[0] is not None
    np.testing.assert_array_equal(codes[0], codes[1])
    optimum = solve(kernel, goal).code
    assert optimum is not None
    assert goal.cost(optimum, kernel) * (1 - 1e-9) <= goal.cost(codes[0], kernel) < math.inf


@pytest.mark.parametrize("name", SEARCHES)
def test_seconds_end_the_training(name: str, chain: tuple[CostTables, KernelTables, float]) -> None:
    budget = Budget(cpu_seconds=0.2)
    SEARCHES[name](Question(*chain[:2], Goal(), budget))
    assert budget.is_exhausted
    assert budget.evaluations_used > 0


@pytest.mark.parametrize("name", SEARCHES)
def test_a_start_is_never_lost_and_threads_stay_as_they_were(
    name: str, chain: tuple[CostTables, KernelTables, float]
) -> None:
    tables, kernel, best_s = chain
    threads = torch.get_num_threads()
    found = SEARCHES[name](Question(tables, kernel, Goal(), Budget(20), start=solve(kernel).code))
    assert found is not None
    assert Goal().cost(found, kernel) == pytest.approx(best_s)
    assert torch.get_num_threads() == threads


def test_the_lstm_learns_the_small_problem(
    chain: tuple[CostTables, KernelTables, float],
) -> None:
    tables, kernel, best_s = chain
    code = lstm_code(Question(tables, kernel, Goal(), Budget(1000)))
    assert code is not None
    assert Goal().cost(code, kernel) <= 1.1 * best_s


def test_no_type_begins_more_stages_than_it_has_devices(
    chain: tuple[CostTables, KernelTables, float],
) -> None:
    tables = chain[0]
    network = LayerSequence(
        torch.from_numpy(layer_features(tables)), torch.tensor([1, 2], dtype=torch.int64)
    )
    kinds, log_probability, entropy = network.sample(200)
    begins = np.concatenate([np.ones((200, 1), bool), np.diff(kinds, axis=1) != 0], axis=1)
    for kind, devices in enumerate((1, 2)):
        assert ((begins & (kinds == kind)).sum(axis=1) <= devices).all()
    assert log_probability.shape == (200,)
    assert 0 <= float(entropy.detach()) <= math.log(2)


def test_rewards_are_graded() -> None:
    costs = np.array(
        [1.0, 2.0, 1e5, MISSES_FLOOR, 2 * MISSES_FLOOR, DOES_NOT_FIT, 3 * DOES_NOT_FIT]
    )
    rewards = reward_of(costs, reference=1.0)
    assert rewards[0] == 0
    assert (np.diff(rewards) <= 0).all()
    assert rewards[2] == MISSED_REWARD == rewards[3]
    assert rewards[4] > rewards[5] == MISFIT_REWARD > rewards[6]


def test_the_planners_that_train_are_the_ones_whose_seconds_are_predicted() -> None:
    for name in planner_names():
        trains = name in SEARCHES
        assert (name in SECONDS_PER_LAYER) == trains
        assert (predicted_training_s(name, 10, 1) > SECONDS_TO_START) == trains
    assert predicted_training_s("layer-ppo", 20, 10_000) > 10


def test_registering_the_other_planners_imports_no_torch() -> None:
    script = (
        "import sys; from heterps_agents.interface.registry import *;"
        "slow = SECONDS_PER_LAYER;"
        "[planner_named(name) for name in planner_names() if name not in slow];"
        "print(*[m for m in ('torch', 'stable_baselines3') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []
