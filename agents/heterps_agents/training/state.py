"""Everything that a training run needs to go on as if it had never stopped, as plain tensors.

Between two updates the future of a run depends on: the network and its optimizer, the episodes that
are under way, the pool, where the stream of problems stands, and the random numbers to come.
"""

from __future__ import annotations

import json
from collections import deque
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sb3_contrib import MaskablePPO
from torch import Tensor

from heterps_agents.training.examples import OptimalPlacements
from heterps_agents.training.learner import State
from heterps_agents.training.problems import ProblemSource
from heterps_envs.environments.stage.vector_env import StagePlacementVecEnv


def begin(model: MaskablePPO) -> None:
    """Starts the episodes, as SB3 does before its first update: then there is a state."""
    assert model.env is not None
    model._last_obs = model.env.reset()  # type: ignore[assignment]
    model._last_episode_starts = np.ones(model.env.num_envs, bool)


def collect(
    model: MaskablePPO,
    env: StagePlacementVecEnv,
    source: ProblemSource,
    optima: OptimalPlacements,
) -> State:
    """The state of a run between two updates: what `torch.load(weights_only=True)` reads."""
    assert model._last_episode_starts is not None
    # SB3 draws its minibatches from NumPy's global numbers.
    legacy = np.random.get_state(legacy=False)  # noqa: NPY002
    assert isinstance(legacy, dict)
    return {
        "policy": model.policy.state_dict(),
        "optimizer": model.policy.optimizer.state_dict(),
        "updates": model._n_updates,
        "episode_starts": torch.from_numpy(model._last_episode_starts.copy()),
        "episodes": [[info["r"], info["l"]] for info in model.ep_info_buffer or ()],
        "torch_random": torch.get_rng_state(),
        "numpy_random": json.dumps(legacy, default=lambda array: array.tolist()),
        "env": {name: _tensor(value) for name, value in env.state().items()},
        "source": json.dumps(source.state()),
        "optima": {name: _tensor(value) for name, value in optima.state().items()},
    }


def restore(
    state: State,
    model: MaskablePPO,
    env: StagePlacementVecEnv,
    source: ProblemSource,
    optima: OptimalPlacements,
) -> None:
    """Puts a collected state into a run that was made with the same config."""
    model.policy.load_state_dict(state["policy"])
    model.policy.optimizer.load_state_dict(state["optimizer"])
    model.num_timesteps, model._n_updates = state["steps"], state["updates"]
    source.restore(json.loads(state["source"]))
    optima.restore({name: _array(value) for name, value in state["optima"].items()})
    env.restore({name: _array(value) for name, value in state["env"].items()})
    model._last_obs = env.episodes.observations()
    model._last_episode_starts = state["episode_starts"].numpy()
    recent = [{"r": reward, "l": length, "t": 0.0} for reward, length in state["episodes"]]
    model.ep_info_buffer = deque(recent, maxlen=model._stats_window_size)
    model.ep_success_buffer = deque(maxlen=model._stats_window_size)
    torch.set_rng_state(state["torch_random"])
    legacy = json.loads(state["numpy_random"])
    legacy["state"]["key"] = np.array(legacy["state"]["key"], np.uint32)
    np.random.set_state(legacy)  # noqa: NPY002


def _tensor(value: NDArray[Any] | str) -> Tensor | str:
    return value if isinstance(value, str) else torch.from_numpy(value)


def _array(value: Tensor | str) -> NDArray[Any] | str:
    return value if isinstance(value, str) else value.numpy()
