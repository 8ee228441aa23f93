"""A search that the policy guides gives it placements to imitate, round by round."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from heterps_agents.exact.solve import solve
from heterps_agents.learned.policy import Policy
from heterps_agents.training import expert
from heterps_agents.training.examples import OptimalPlacements
from heterps_agents.training.expert import ExpertRounds
from heterps_agents.training.problems import ProblemSource, optima_of, pool_of
from heterps_agents.training.run import TrainingProgress
from heterps_agents.training.train import train
from heterps_envs.closed_form.kernel_tables import kernel_tables
from tests.agents.training.conftest import CHAINS, EXPERT, Runs


@pytest.fixture(scope="module", autouse=True)
def _short_searches() -> Iterator[None]:
    """A tenth of the usual: enough for problems of up to ten layers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(expert, "SEARCH_EVALUATIONS", 10_000)
        yield


def test_a_round_finds_placements_that_are_near_the_optimum(random_policy: Policy) -> None:
    problems = ProblemSource(EXPERT).take(17)
    pool, optima = pool_of(problems, EXPERT.target_range, 10, 3), OptimalPlacements(17, 10)
    assert not optima.is_known.any()
    # As if what stood for the optima at first were poor.
    pool.step_time_s *= 1.1
    rounds, first_s = ExpertRounds(EXPERT, pool, optima), pool.step_time_s.copy()
    assert not rounds.search_some(random_policy)
    assert rounds.search_some(random_policy)
    assert optima.is_known.all()
    assert not optima.is_proven.any()
    best_s = np.array([solve(kernel_tables(entry.tables)).step_time_s for entry in problems])
    assert (pool.step_time_s >= best_s * (1 - 1e-9)).all()
    assert np.median(pool.step_time_s / best_s) < 1.001
    assert (pool.step_time_s < first_s * (1 - 1e-6)).all()
    # What is known already is given up for better ones alone: the same search finds none.
    rounds.end()
    before_s = pool.step_time_s.copy()
    while not rounds.search_some(random_policy):
        pass
    assert rounds.improved == 0
    np.testing.assert_array_equal(pool.step_time_s, before_s)


def test_without_an_exact_solver_a_problem_begins_with_what_short_searches_find() -> None:
    problems = ProblemSource(EXPERT).take(20)
    optima = optima_of(problems, 10)
    assert optima.is_known.all()
    assert not optima.is_proven.any()
    best_s = np.array([solve(kernel_tables(entry.tables)).step_time_s for entry in problems])
    found_s = np.array([entry.step_time_s for entry in problems])
    assert (found_s >= best_s * (1 - 1e-9)).all()
    assert np.median(found_s / best_s) < 1.01


def test_proven_optima_are_not_searched(random_policy: Policy) -> None:
    problems = ProblemSource(CHAINS).take(8)
    pool, optima = pool_of(problems, CHAINS.target_range, 10, 3), optima_of(problems, 10)
    rounds = ExpertRounds(EXPERT, pool, optima)
    assert len(rounds.rows) == 0
    assert rounds.search_some(random_policy)


def test_rounds_come_evenly_between_passes() -> None:
    problems = ProblemSource(CHAINS).take(2)
    pool, optima = pool_of(problems, CHAINS.target_range, 10, 3), optima_of(problems, 10)
    rounds, due = ExpertRounds(EXPERT, pool, optima), []
    for passes in range(EXPERT.imitation_passes):
        if rounds.is_due(passes):
            due.append(passes)
            rounds.end()
    assert due == [2, 4]


@pytest.mark.slow
def test_a_run_of_expert_iteration_learns_from_what_it_finds(trained: Runs) -> None:
    result, seen = trained["expert"]
    assert result.steps == 0
    assert result.passes == EXPERT.imitation_passes
    assert [state.share for state in seen] == sorted(state.share for state in seen)
    assert seen[-1].share == 1.0
    assert "searching, round 1 of 2: 16 of 18 problems" in {state.doing for state in seen}
    # What short searches found at first, then what the policy's search has made of it.
    losses = [state.imitation_loss for state in seen]
    assert losses[-1] < losses[0]
    folder = result.policy_file.parent
    events = EventAccumulator(str(folder / "imitation")).Reload()
    improved = [entry.value for entry in events.Scalars("train_imitation/improved_placements")]
    assert 0 <= improved[0] <= EXPERT.pool_size
    assert len(improved) == 2
    steps = [
        entry.step
        for entry in EventAccumulator(str(folder / "development"))
        .Reload()
        .Scalars("train/greedy_gap_median")
    ]
    assert steps[-1] == EXPERT.imitation_passes


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["imitation", "expert"])
def test_a_run_without_ppo_goes_on_exactly_where_it_was_stopped(
    trained: Runs, tmp_path: Path, kind: str
) -> None:
    config = {"imitation": CHAINS.changed(algorithm="imitation"), "expert": EXPERT}[kind]

    def stop(state: TrainingProgress) -> None:
        # Amid a round of search, where there is one.
        if state.doing or (kind == "imitation" and state.passes == 1):
            raise KeyboardInterrupt

    assert train(config, tmp_path, progress=stop).interrupted
    result = train(config, tmp_path, resume=True)
    assert not result.interrupted
    for name, value in trained[kind].result.policy.weights.items():
        np.testing.assert_array_equal(result.policy.weights[name], value)


def test_where_all_optima_are_proven_there_is_nothing_to_search(tmp_path: Path) -> None:
    config = EXPERT.changed(longest_exact_s=1.0, imitation_passes=3)
    with pytest.warns(UserWarning, match="expert iteration is imitation"):
        train(config, tmp_path)
