"""The network as a policy of stable-baselines3: its gradients, and its actions."""

import numpy as np
import torch
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.utils import get_action_masks

from heterps_agents.training.network import StagePolicy
from heterps_agents.training.problems import (
    ProblemSource,
    pool_of,
)
from heterps_envs.environments.stage.vector_env import StagePlacementVecEnv
from tests.agents.training.conftest import CHAINS


def test_parameters_move_after_one_update() -> None:
    pool = pool_of(ProblemSource(CHAINS).take(8), CHAINS.target_range)
    env = StagePlacementVecEnv(pool, num_envs=16)
    model = MaskablePPO(StagePolicy, env, n_steps=8, batch_size=64, policy_kwargs={"hidden": 16})
    before = {name: value.clone() for name, value in model.policy.state_dict().items()}
    model.learn(16 * 8)
    moved = [
        name for name, value in model.policy.state_dict().items() if (value != before[name]).any()
    ]
    assert set(moved) == set(before)


def test_actions_of_the_torch_policy_are_allowed() -> None:
    pool = pool_of(ProblemSource(CHAINS).take(8), CHAINS.target_range)
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
