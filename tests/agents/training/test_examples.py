"""Examples to imitate: replayed optima, and a network that learns from them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sb3_contrib import MaskablePPO

from heterps_agents.training.examples import OptimalPlacements
from heterps_agents.training.imitation import imitate
from heterps_agents.training.network import StagePolicy, network_of
from heterps_agents.training.problems import Referenced, optima_of, pool_of, with_optimum
from heterps_configs.documents.training import ChainTrainingConfig
from heterps_configs.errors import HeterpsError
from heterps_envs.closed_form.placement import decode
from heterps_envs.environments.stage.pool import ProblemPool
from heterps_envs.environments.stage.state import NUM_CANDIDATE_FEATURES, num_actions, option_of
from heterps_envs.environments.stage.vector_env import StagePlacementVecEnv
from heterps_envs.problem_sets.chains import generate

CLASSES = 3


def referenced(count: int, seed: int) -> list[Referenced]:
    drawn = generate(count, seed, layers=(6, 12), classes=(2, CLASSES))
    return [entry for entry in map(with_optimum, drawn) if entry is not None]


def made_of(problems: list[Referenced]) -> tuple[ProblemPool, OptimalPlacements]:
    pool = pool_of(problems, (1.0, 1.1), max_classes=CLASSES)
    return pool, optima_of(problems, pool.problems.output_bytes.shape[1])


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10_000))
def test_examples_are_the_stages_of_the_optimum_back_to_front(seed: int) -> None:
    problems = referenced(1, seed)
    if not problems or problems[0].code is None:
        return
    pool, optima = made_of(problems)
    stages = list(reversed(decode(problems[0].code)))
    examples = optima.examples(pool, np.random.default_rng(seed), 1)
    taken = [option_of(int(action), CLASSES) for action in examples.actions]
    assert taken == [stage.device_class for stage in stages[: len(taken)]]
    candidates = num_actions(CLASSES) * NUM_CANDIDATE_FEATURES
    grid = examples.observations[:, :candidates].reshape(
        -1, num_actions(CLASSES), NUM_CANDIDATE_FEATURES
    )
    chosen = grid[np.arange(len(taken)), examples.actions]
    assert (chosen[:, 0] > 0.5).all()
    replicas = [stage.replicas for stage in stages[: len(taken)]]
    assert np.round(2 ** (4 * chosen[:, 5])).astype(int).tolist() == replicas


def test_most_optima_can_be_replayed_to_their_end() -> None:
    problems = referenced(40, seed=5)
    pool, optima = made_of(problems)
    whole = 0
    for row, entry in enumerate(problems):
        alone = OptimalPlacements(len(problems), optima.first_layer.shape[1])
        alone.put(row, entry.code)
        assert entry.code is not None
        replayed = alone.examples(pool, np.random.default_rng(row), 1)
        whole += len(replayed.actions) == len(decode(entry.code))
    assert whole > 0.6 * len(problems)


def test_without_a_known_placement_there_are_no_examples() -> None:
    problems = referenced(3, seed=7)
    pool, optima = made_of(problems)
    for row in range(len(problems)):
        optima.put(row, None)
    assert len(optima.examples(pool, np.random.default_rng(0), 5).actions) == 0


def test_equal_random_numbers_give_equal_examples_after_a_restore() -> None:
    problems = referenced(6, seed=9)
    pool, optima = made_of(problems)
    again = OptimalPlacements(*optima.first_layer.shape)
    again.restore(optima.state())
    first, second = (book.examples(pool, np.random.default_rng(3), 20) for book in (optima, again))
    np.testing.assert_array_equal(first.actions, second.actions)
    np.testing.assert_array_equal(first.observations, second.observations)


def test_a_network_learns_what_it_imitates() -> None:
    pool, optima = made_of(referenced(20, seed=11))
    env = StagePlacementVecEnv(pool, num_envs=2)
    torch.manual_seed(0)
    model = MaskablePPO(StagePolicy, env, n_steps=8, batch_size=16, policy_kwargs={"hidden": 32})
    network, rng = network_of(model), np.random.default_rng(0)
    for group in network.optimizer.param_groups:
        group["lr"] = 3e-3
    losses = [imitate(network, optima.examples(pool, rng, 64), 64, rng) for _ in range(20)]
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.parametrize("objective", ["price", "budget"])
def test_optima_of_other_objectives_are_not_imitated(objective: str) -> None:
    with pytest.raises((HeterpsError, ValueError), match="imitation_passes: must be 0"):
        ChainTrainingConfig.model_validate(
            {"total_steps": 10, "objective": objective, "imitation_passes": 1}
        )
