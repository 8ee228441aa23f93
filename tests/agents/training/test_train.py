"""Training learns, resumes, can be interrupted, and fine-tuning starts where a policy is."""

import json
import math
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.utils import get_action_masks
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from heterps_agents.exact.frontier import solve_frontier
from heterps_agents.learned.policy import Policy
from heterps_agents.training.clock import Clock, Interrupt
from heterps_agents.training.evaluation import Gap, HeldOut
from heterps_agents.training.examples import OptimalPlacements
from heterps_agents.training.network import StagePolicy
from heterps_agents.training.problems import (
    ProblemSource,
    perturbed,
    pool_of,
    refresh,
    with_frontier,
    with_optimum,
    with_reference,
)
from heterps_agents.training.progress import Milestone, TrainingProgress, reached
from heterps_agents.training.run import TrainingResult
from heterps_agents.training.timed_env import TimedVecEnv
from heterps_agents.training.train import fine_tune, train
from heterps_configs.documents.chain_training import ChainTrainingConfig
from heterps_configs.errors import HeterpsError
from heterps_envs.closed_form.formula import kernel_tables
from heterps_envs.environments.stage.vector_env import StagePlacementVecEnv
from heterps_envs.problem_sets.chains import generate

Trained = tuple[TrainingResult, Path, list[TrainingProgress]]

TINY = ChainTrainingConfig(
    total_steps=512,
    layers=(6, 10),
    classes=(2, 3),
    pool_size=24,
    refreshed_per_update=2,
    imitation_passes=2,
    imitation_problems=32,
    imitation_refreshed=4,
    hidden=16,
    num_environments=16,
    steps_per_update=8,
    minibatch_size=64,
    evaluation_problems=6,
    curve_problems=1,
    evaluation_every_s=1000.0,
    checkpoint_every_s=0.001,
    num_threads=1,
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("run")
    seen: list[TrainingProgress] = []
    return train(TINY, folder, progress=seen.append, command="heterps train x"), folder, seen


def test_parameters_move_after_one_update() -> None:
    pool = pool_of(ProblemSource(TINY).take(8), TINY.target_range)
    env = StagePlacementVecEnv(pool, num_envs=16)
    model = MaskablePPO(StagePolicy, env, n_steps=8, batch_size=64, policy_kwargs={"hidden": 16})
    before = {name: value.clone() for name, value in model.policy.state_dict().items()}
    model.learn(16 * 8)
    moved = [
        name for name, value in model.policy.state_dict().items() if (value != before[name]).any()
    ]
    assert set(moved) == set(before)


def test_actions_of_the_torch_policy_are_allowed() -> None:
    pool = pool_of(ProblemSource(TINY).take(8), TINY.target_range)
    env = StagePlacementVecEnv(pool, num_envs=16)
    model = MaskablePPO(StagePolicy, env, n_steps=8, batch_size=64, policy_kwargs={"hidden": 16})
    observations, masks = env.reset(), get_action_masks(env)
    for deterministic in (True, False):
        actions, _ = model.predict(observations, deterministic=deterministic, action_masks=masks)
        assert masks[np.arange(16), actions].all()
        tensors = torch.as_tensor(observations)
        chosen, values, log_probability = model.policy(tensors, deterministic, masks)
        again = model.policy.evaluate_actions(tensors, chosen, torch.as_tensor(masks))
        torch.testing.assert_close(again[0], values)
        torch.testing.assert_close(again[1], log_probability)
        entropy = again[2]
        assert entropy is not None
        assert (entropy >= 0).all()


def test_a_run_leaves_policy_checkpoint_curves_and_scores(trained: Trained) -> None:
    result, folder, seen = trained
    assert result.steps >= 512
    assert not result.interrupted
    meta = json.loads((folder / "result.json").read_text())
    assert meta["command"] == "heterps train x"
    assert meta["scores"]["greedy_gap_median"] == result.scores["greedy_gap_median"]
    assert Policy.load(result.policy_file).meta["config"] == TINY.to_mapping()
    assert (folder / "checkpoint.pt").is_file()
    assert [state.steps for state in seen] == sorted(state.steps for state in seen)
    assert seen[-1].gap_median >= 0
    events = EventAccumulator(str(folder)).Reload().Tags()["scalars"]
    assert {
        "rollout/ep_rew_mean",
        "placement/greedy_gap_median",
        "placement/greedy_gap_p95",
        "placement/beam16_gap_p95",
        "longer/greedy_gap_median",
        "more-types/beam16_gap_median",
        "train/entropy",
        "time/steps_per_second",
        "time/environment_share",
        "imitation/loss",
    } <= set(events)


def test_equal_seeds_give_equal_policies(trained: Trained, tmp_path: Path) -> None:
    result, _, _ = trained
    again = train(TINY, tmp_path)
    for name, value in result.policy.weights.items():
        np.testing.assert_array_equal(again.policy.weights[name], value)


@pytest.mark.parametrize("steps", [0, 256])  # while it imitates, and later
def test_a_run_that_was_stopped_and_resumed_ends_with_the_weights_of_one_that_was_not(
    trained: Trained, tmp_path: Path, steps: int
) -> None:
    result, _, _ = trained

    def stop(state: TrainingProgress) -> None:
        if state.steps == steps:
            raise KeyboardInterrupt

    first = train(TINY, tmp_path, progress=stop)
    assert (first.steps, first.interrupted) == (steps, True)
    np.random.seed(99)  # noqa: NPY002 (what else happens to the global numbers does not matter)
    torch.manual_seed(99)
    second = train(TINY, tmp_path, resume=True)
    assert second.steps == result.steps
    for name, value in result.policy.weights.items():
        np.testing.assert_array_equal(second.policy.weights[name], value)


@pytest.mark.parametrize("objective", ["price", "budget"])
def test_prices_are_learned_and_resume_exactly(objective: str, tmp_path: Path) -> None:
    def stop(state: TrainingProgress) -> None:
        if state.steps == 256:
            raise KeyboardInterrupt

    config = TINY.changed(objective=objective, imitation_passes=0)
    whole = train(config, tmp_path / "whole")
    assert whole.policy.knows_prices
    assert {"cheapest/fast_gap_median", "cheapest/normal_solved"} <= whole.scores.keys()
    train(config, tmp_path / "parts", progress=stop)
    resumed = train(config, tmp_path / "parts", resume=True)
    for name, value in whole.policy.weights.items():
        np.testing.assert_array_equal(resumed.policy.weights[name], value)
    with pytest.raises(HeterpsError, match="was trained with objective"):
        train(TINY, tmp_path / "parts", resume=True)


def test_anchors_are_the_exact_frontier() -> None:
    tables = generate(1, seed=6, layers=(6, 8), classes=(3, 3))[0]
    found = with_frontier(tables, longest_exact_s=10.0)
    assert found is not None
    points = solve_frontier(kernel_tables(tables)).points
    assert [one.step_time_s for one in found.anchors] == [one.step_time_s for one in points]
    assert with_frontier(tables, longest_exact_s=1e-9) is None


def test_an_environment_goes_on_where_another_stood() -> None:
    def made() -> StagePlacementVecEnv:
        pool = pool_of(ProblemSource(TINY).take(8), TINY.target_range, keeps_best=True)
        return StagePlacementVecEnv(pool, num_envs=6, seed=1)

    first, second = made(), made()
    first.reset()
    for _ in range(5):
        first.step(first.action_masks().argmax(axis=1))
    second.restore(first.state())
    for _ in range(10):
        actions = first.action_masks().argmax(axis=1)
        np.testing.assert_array_equal(second.action_masks().argmax(axis=1), actions)
        for mine, other in zip(first.step(actions)[:3], second.step(actions)[:3], strict=True):
            np.testing.assert_array_equal(mine, other)


def test_ctrl_c_ends_a_run_after_its_update_and_a_second_one_at_once() -> None:
    interrupt, before = Interrupt(), signal.getsignal(signal.SIGINT)
    with interrupt.watched():
        signal.raise_signal(signal.SIGINT)
        assert interrupt.requested
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_milestones_are_when_all_their_limits_were_first_met() -> None:
    def gap(value: float) -> Gap:
        return Gap(value, value, value, 1.0)

    milestones: dict[str, Milestone] = {}
    reached({"in-range/greedy": gap(0.5), "in-range/beam16": gap(0.0)}, milestones, 10, 1.0)
    assert list(milestones.values()) == [Milestone(10, 1.0)]
    reached({"in-range/greedy": gap(0.0), "in-range/beam16": gap(0.5)}, milestones, 20, 2.0)
    reached({"in-range/greedy": gap(0.0), "in-range/beam16": gap(0.0)}, milestones, 30, 3.0)
    assert [entry.steps for entry in milestones.values()] == [10, 20]


def test_problems_whose_optimum_takes_long_start_from_the_greedy_rule() -> None:
    tables = generate(3, seed=3)
    for entry in tables:
        quick, long = with_reference(entry, 10.0), with_reference(entry, 1e-6)
        assert quick is not None
        assert long is not None
        assert quick.step_time_s <= long.step_time_s * (1 + 1e-9)


def test_the_time_in_the_environment_is_counted() -> None:
    pool = pool_of(ProblemSource(TINY).take(8), TINY.target_range)
    env = TimedVecEnv(StagePlacementVecEnv(pool, num_envs=4))
    env.reset()
    env.step(get_action_masks(env).argmax(axis=1))
    assert env.seconds > 0


def test_resuming_continues_the_curve(tmp_path: Path) -> None:
    first = train(TINY, tmp_path)
    longer = TINY.changed(total_steps=1024)
    second = train(longer, tmp_path, resume=True)
    assert second.steps >= 1024 > first.steps
    assert second.seconds > first.seconds
    scalars = EventAccumulator(str(tmp_path)).Reload().Scalars("rollout/ep_rew_mean")
    steps = [event.step for event in scalars]
    assert steps == sorted(set(steps))


def test_an_interrupted_run_is_saved_and_resumes(tmp_path: Path) -> None:
    def interrupt(state: TrainingProgress) -> None:
        if state.steps > 0:
            raise KeyboardInterrupt

    result = train(TINY, tmp_path, progress=interrupt)
    assert result.interrupted
    assert 0 < result.steps < 512
    assert train(TINY, tmp_path, resume=True).steps >= 512


def test_a_directory_with_another_run_is_refused(trained: Trained, tmp_path: Path) -> None:
    _, folder, _ = trained
    with pytest.raises(HeterpsError, match="resume it or name another"):
        train(TINY, folder)
    with pytest.raises(HeterpsError, match=r"no checkpoint\.pt to resume from"):
        train(TINY, tmp_path, resume=True)
    for name, value in (("hidden", 32), ("pool_size", 25), ("num_environments", 8)):
        with pytest.raises(HeterpsError, match=f"{name} {getattr(TINY, name)}, not {value}"):
            train(TINY.changed(**{name: value}), folder, resume=True)


def test_a_broken_checkpoint_is_refused(tmp_path: Path) -> None:
    train(TINY, tmp_path)
    (tmp_path / "checkpoint.pt").write_bytes(b"broken")
    with pytest.raises(HeterpsError, match="is not a checkpoint"):
        train(TINY, tmp_path, resume=True)
    torch.save({"steps": 3}, tmp_path / "checkpoint.pt")
    with pytest.raises(HeterpsError, match="another version of heterps"):
        train(TINY, tmp_path, resume=True)


def test_fine_tuning_changes_a_copy(trained: Trained) -> None:
    policy = trained[0].policy
    before = {name: value.copy() for name, value in policy.weights.items()}
    tuned = fine_tune(policy, generate(1, seed=8), seconds=4.0, seed=1)
    assert tuned.meta["fine_tuned_steps"] > 0
    assert any((tuned.weights[name] != value).any() for name, value in before.items())
    for name, value in policy.weights.items():
        np.testing.assert_array_equal(value, before[name])


def test_fine_tuning_without_a_problem_is_refused(trained: Trained) -> None:
    with pytest.raises(HeterpsError, match="at least one problem"):
        fine_tune(trained[0].policy, [], seconds=1.0)


def test_the_clock_counts_the_budget_that_ends_first() -> None:
    clock = Clock(ChainTrainingConfig(budget_s=1000.0, total_steps=100), spent_s=100.0)
    assert clock.share == pytest.approx(0.1, abs=0.01)
    clock.steps = 50
    assert clock.share == 0.5
    assert clock.between(1.0, 0.0) == 0.5
    clock.steps = 200
    assert clock.is_over


def test_references_are_the_optimum_and_its_bottleneck() -> None:
    entry = with_optimum(generate(1, seed=3)[0])
    assert entry is not None
    assert 0 < entry.bottleneck_s < entry.step_time_s


def test_refreshing_leaves_problems_that_are_in_use() -> None:
    source = ProblemSource(TINY)
    pool = pool_of(source.take(10), TINY.target_range, TINY.layers[1], TINY.classes[1])
    before = pool.step_time_s.copy()
    used = np.array([0, 3, 4])
    optima = OptimalPlacements(10, TINY.layers[1])
    refresh(pool, optima, source, used, 4, np.random.default_rng(0))
    changed = np.flatnonzero(pool.step_time_s != before)
    assert len(changed) == 4
    assert not set(changed) & set(used)
    assert set(np.flatnonzero(optima.first_layer[:, 0] == 0)) == set(changed)


def test_drifted_problems_begin_with_the_problems_themselves() -> None:
    tables = generate(2, seed=5)
    drifted = perturbed(tables, 6, seed=0, class_sigma=0.1, layer_sigma=0.05)
    assert drifted[:2] == tables
    ratio = drifted[2].forward_s / tables[0].forward_s
    assert 0.5 < ratio.min() < ratio.max() < 2
    np.testing.assert_array_equal(drifted[2].memory_bytes, tables[0].memory_bytes)


def test_a_problem_without_any_placement_found_counts_as_an_infinite_gap() -> None:
    gap = Gap.of(np.array([0.0, 0.0, 0.02, math.inf]))
    assert (gap.median, gap.solved) == (0.0, 0.5)
    assert math.isinf(gap.mean)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_ten_seconds_of_training_beat_an_untrained_policy(
    random_policy: Policy, tmp_path: Path
) -> None:
    config = ChainTrainingConfig(
        total_steps=60_000, pool_size=256, evaluation_problems=40, curve_problems=0, num_threads=1
    )
    held = HeldOut(generate(40, seed=77))
    rewards: list[float] = []
    result = train(config, tmp_path, progress=lambda state: rewards.append(state.episode_reward))
    assert rewards[-1] > rewards[0] + 0.3
    before, after = (held.gap(policy, width=1) for policy in (random_policy, result.policy))
    assert after.mean < 0.8 * before.mean
    assert after.solved > before.solved
    assert held.gap(result.policy, width=16).median < 0.02


@pytest.mark.slow
def test_seconds_of_imitation_beat_an_untrained_policy(
    random_policy: Policy, tmp_path: Path
) -> None:
    config = ChainTrainingConfig(
        total_steps=1, pool_size=256, imitation_passes=30, imitation_problems=512,
        imitation_refreshed=0, evaluation_problems=40, curve_problems=0, num_threads=1,
    )  # fmt: skip
    held = HeldOut(generate(40, seed=77))
    policy = train(config, tmp_path).policy
    before, after = (held.gap(each, width=1) for each in (random_policy, policy))
    assert after.mean < 0.8 * before.mean
    assert after.solved > before.solved
