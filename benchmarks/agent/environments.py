"""Environments: steps per second of the native vector environments and of `DummyVecEnv`.

python benchmarks/agent/agent.py --only environments
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from sb3_contrib.common.maskable.utils import get_action_masks
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from benchmarks.agent.section import SectionResult, Settings, TableRows, progress_bar
from heterps_envs.environments.graph.env import GraphPlacementEnv
from heterps_envs.environments.graph.pool import GraphPool
from heterps_envs.environments.graph.vector_env import GraphPlacementVecEnv
from heterps_envs.environments.layer.env import LayerPlacementEnv
from heterps_envs.environments.layer.pool import LayerPool
from heterps_envs.environments.layer.vector_env import LayerPlacementVecEnv
from heterps_envs.environments.stage.env import StagePlacementEnv
from heterps_envs.environments.stage.pool import ProblemPool
from heterps_envs.environments.stage.vector_env import StagePlacementVecEnv
from heterps_envs.problem_sets.chains import generate
from heterps_envs.problem_sets.graphs import generate_graphs

NUM_ENVS, PROBLEMS = 256, 64
STEPS, QUICK_STEPS = 200, 40
NOTE = (
    f"{NUM_ENVS} episodes at once, random allowed actions, medians over steps that were taken in "
    "turns; CPU seconds of this process. The single environments are in Monitor, because the "
    "native ones report rewards and lengths of episodes too."
)


class Pair(NamedTuple):
    """Two forms of one environment on the same problems."""

    name: str
    native: VecEnv
    dummy: VecEnv


def run(settings: Settings) -> SectionResult:
    """One table, two lines for each environment."""
    rows, summary = [], {}
    pairs = list(_pairs(settings.seed))
    steps = QUICK_STEPS if settings.quick else STEPS
    with progress_bar("environments", len(pairs)) as advance:
        for pair in pairs:
            native, dummy = speeds(pair, steps, settings.seed)
            for form, speed in (("native", native), ("DummyVecEnv", dummy)):
                rows.append(
                    {"environment": pair.name, "form": form, "steps_per_s": speed}
                    | {"times DummyVecEnv": speed / dummy}
                )
            summary[f"{pair.name}: steps_per_s"] = native
            summary[f"{pair.name}: native over DummyVecEnv"] = native / dummy
            advance(pair.name)
    return SectionResult([TableRows("speed", "environments: speed", NOTE, rows)], summary)


def _pairs(seed: int) -> Iterator[Pair]:
    tables = generate(PROBLEMS, seed)
    stages = ProblemPool.from_tables(tables, max_classes=4)
    yield Pair(
        "StagePlacement-v0",
        StagePlacementVecEnv(stages, NUM_ENVS, seed),
        _dummy(lambda: StagePlacementEnv(pool=stages)),
    )
    layers = LayerPool.from_tables(tables, max_classes=4)
    yield Pair(
        "LayerPlacement-v0",
        LayerPlacementVecEnv(layers, NUM_ENVS, seed),
        _dummy(lambda: LayerPlacementEnv(pool=layers)),
    )
    graphs = GraphPool.from_tables(generate_graphs(PROBLEMS, seed))
    yield Pair(
        "GraphPlacement-v0",
        GraphPlacementVecEnv(graphs, NUM_ENVS, seed),
        _dummy(lambda: GraphPlacementEnv(pool=graphs)),
    )


def _dummy(make: Callable[[], gym.Env[Any, Any]]) -> DummyVecEnv:
    return DummyVecEnv([lambda: Monitor(make()) for _ in range(NUM_ENVS)])


def speeds(pair: Pair, steps: int, seed: int) -> tuple[float, float]:
    """Environment steps per CPU second of the native form and of the other."""
    rng = np.random.default_rng(seed)
    seconds: tuple[list[float], list[float]] = ([], [])
    for env in (pair.native, pair.dummy):
        env.reset()
        _step_seconds(env, rng)  # compiles
    for _ in range(steps):  # in turns, so that a slow moment of the machine falls on both
        for env, taken in zip((pair.native, pair.dummy), seconds, strict=True):
            taken.append(_step_seconds(env, rng))
    native, dummy = (NUM_ENVS / statistics.median(taken) for taken in seconds)
    return native, dummy


def _step_seconds(env: VecEnv, rng: np.random.Generator) -> float:
    """One step of all episodes, with random allowed actions that are chosen before."""
    masks = get_action_masks(env)
    actions = (masks * rng.random(masks.shape[1])).argmax(axis=1)
    start = time.process_time()
    env.step(actions)
    return time.process_time() - start
