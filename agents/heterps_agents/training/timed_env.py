"""Counts the seconds that training spends in its environment."""

from __future__ import annotations

import time
from typing import Any

from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper


class TimedVecEnv(VecEnvWrapper):
    """A vector environment that knows how long its steps took.

    Attributes:
        seconds: Of all steps and resets so far, masks included.
    """

    def __init__(self, venv: VecEnv) -> None:
        super().__init__(venv)
        self.seconds = 0.0

    def reset(self) -> Any:
        """Begins all episodes anew."""
        start = time.perf_counter()
        observations = self.venv.reset()
        self.seconds += time.perf_counter() - start
        return observations

    def step_wait(self) -> Any:
        """One step of all episodes."""
        start = time.perf_counter()
        result = self.venv.step_wait()
        self.seconds += time.perf_counter() - start
        return result

    def env_method(
        self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any
    ) -> list[Any]:
        """Calls a method of the environments; masks count as time in the environment."""
        start = time.perf_counter()
        result = self.venv.env_method(method_name, *method_args, indices=indices, **method_kwargs)
        self.seconds += time.perf_counter() - start
        return result
