"""The agent: environment speed, gap to the optimum of the policy, and of one minute of training.

python benchmarks/agent.py            # trains for a minute; about three minutes in all
python benchmarks/agent.py --quick    # the shipped policy only
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sb3_contrib.common.maskable.utils import get_action_masks
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from benchmarks.common import parse_options, report
from heterps_agents.annealing import polish
from heterps_agents.evaluation import Gap, HeldOut
from heterps_agents.greedy import greedy_code
from heterps_agents.objective import Goal
from heterps_agents.planner import Budget
from heterps_agents.policy import Policy
from heterps_agents.ppo import POLISH_EVALUATIONS, WIDTH
from heterps_configs.training_config import TrainingConfig
from heterps_envs.closed_form import evaluate, kernel_tables
from heterps_envs.generator import generate, held_out
from heterps_envs.problem_pool import ProblemPool
from heterps_envs.stage_placement import StagePlacementEnv
from heterps_envs.vector_env import StagePlacementVecEnv

NUM_ENVS, STEPS = 256, 200
Row = dict[str, Any]


def main() -> None:
    options = parse_options(__doc__)
    summary: dict[str, Any] = {}
    rows = environment_rows(options.seed, summary)
    held = HeldOut(held_out())
    policies = {"shipped": Policy.load("generalist")}
    if not options.quick:
        policies["one minute"] = train_a_minute(options.seed, summary)
    for name, policy in policies.items():
        rows += policy_rows(name, policy, held, summary)
    rows += search_rows(held, options.seed)
    if not options.quick:
        rows += unseen_size_rows(policies["shipped"], options.seed)
    report("agent", rows, summary, options)


def environment_rows(seed: int, summary: dict[str, Any]) -> list[Row]:
    """Environment steps per second, native and through `DummyVecEnv`, on the same problems."""
    tables = generate(64, seed)
    pool = ProblemPool.from_tables(tables, max_classes=4)
    native = StagePlacementVecEnv(pool, NUM_ENVS, seed)
    # Monitor adds the reward and length of an episode to its info; the native form has them.
    dummy = DummyVecEnv([lambda: Monitor(StagePlacementEnv(pool=pool)) for _ in range(NUM_ENVS)])
    rng = np.random.default_rng(seed)
    native.reset()
    dummy.reset()
    cases: dict[str, VecEnv] = {"native": native, "DummyVecEnv": dummy}
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(STEPS):  # in turns, so that a slow moment of the machine falls on both
        for name, env in cases.items():
            seconds[name].append(step_seconds(env, rng))
    speeds = {name: NUM_ENVS / statistics.median(values[1:]) for name, values in seconds.items()}
    summary["vec_env_steps_per_s"] = speeds["native"]
    summary["vec_env_over_dummy"] = speeds["native"] / speeds["DummyVecEnv"]
    return [
        {"what": f"{name}, {NUM_ENVS} problems", "steps_per_s": speed}
        for name, speed in speeds.items()
    ]


def step_seconds(env: VecEnv, rng: np.random.Generator) -> float:
    """One step of all environments, with random allowed actions that are chosen before."""
    masks = get_action_masks(env)
    actions = (masks * rng.random(masks.shape[1])).argmax(axis=1)
    start = time.perf_counter()
    env.step(actions)
    return time.perf_counter() - start


def train_a_minute(seed: int, summary: dict[str, Any]) -> Policy:
    """The shipped quick config, as `heterps train --config quick` runs it."""
    from heterps_agents.training import train
    from heterps_configs import library

    config = library.load("training", "quick")
    assert isinstance(config, TrainingConfig)
    with TemporaryDirectory() as folder:
        result = train(config.model_copy(update={"seed": seed}), Path(folder) / "run")
    summary["one_minute_steps"] = result.steps
    summary["one_minute_seconds"] = result.seconds
    return result.policy


def policy_rows(name: str, policy: Policy, held: HeldOut, summary: dict[str, Any]) -> list[Row]:
    """Gaps of greedy decoding and of the beam, without and with the polish of the planner."""
    key = name.replace(" ", "_")
    rows = []
    for label, width in (("greedy", 1), ("beam16", WIDTH)):
        start = time.process_time()
        codes, gaps = held.decoded(policy, width).code, held.gaps(policy, width)
        cpu_s = (time.process_time() - start) / 2
        rows.append(gap_row(f"{name}, {label}", gaps, cpu_s))
        for field in ("median", "p95"):
            summary[f"{key}_{label}_gap_{field}"] = getattr(Gap.of(gaps), field)
        if width > 1:
            start = time.process_time()
            polished = np.minimum(gaps, polished_gaps(codes, held))
            cpu_s += time.process_time() - start
            rows.append(gap_row(f"{name}, {label} + polish", polished, cpu_s))
            for field in ("median", "p95"):
                summary[f"{key}_{label}_polished_gap_{field}"] = getattr(Gap.of(polished), field)
    return rows


def search_rows(held: HeldOut, seed: int) -> list[Row]:
    """The rule `greedy`, and annealing from it, on the same problems."""
    rows = []
    start = time.process_time()
    codes = []
    for entry in held.tables:
        code = greedy_code(entry, kernel_tables(entry), Goal(), Budget())
        codes.append(np.zeros(entry.num_layers, np.int16) if code is None else code)
    rows.append(gap_row("planner greedy", code_gaps(codes, held), time.process_time() - start))
    for evaluations in (POLISH_EVALUATIONS, 50_000):
        start = time.process_time()
        gaps = polished_gaps(codes, held, evaluations, seed)
        cpu_s = time.process_time() - start
        rows.append(gap_row(f"greedy + annealing {evaluations:,}", gaps, cpu_s))
    return rows


def unseen_size_rows(policy: Policy, seed: int) -> list[Row]:
    """Longer models and more device classes than any that the policy was trained on."""
    rows = []
    sizes: dict[str, dict[str, tuple[int, int]]] = {
        "64-96 layers": {"layers": (64, 96)},
        "5-6 classes": {"classes": (5, 6), "count_range": (1, 3)},
    }
    for name, size in sizes.items():
        held = HeldOut(generate(20, 10_000 + seed, **size))
        start = time.process_time()
        codes, gaps = held.decoded(policy, WIDTH).code, held.gaps(policy, WIDTH)
        gaps = np.minimum(gaps, polished_gaps(codes, held))
        cpu_s = time.process_time() - start
        rows.append(gap_row(f"shipped, beam16 + polish, {name}", gaps, cpu_s))
    return rows


def code_gaps(codes: list[NDArray[np.int16]], held: HeldOut) -> NDArray[np.float64]:
    seconds = [
        evaluate(code[None, : entry.num_layers], kernel_tables(entry))[0][0]
        for code, entry in zip(codes, held.tables, strict=True)
    ]
    return np.asarray(np.maximum(np.array(seconds) / held.optimum_s - 1, 0.0))


def polished_gaps(
    codes: Any, held: HeldOut, evaluations: int = POLISH_EVALUATIONS, seed: int = 0
) -> NDArray[np.float64]:
    polished = [
        polish(np.ascontiguousarray(code[: e.num_layers]), kernel_tables(e), evaluations, seed)
        for code, e in zip(codes, held.tables, strict=True)
    ]
    return code_gaps(polished, held)


def gap_row(what: str, gaps: NDArray[np.float64], cpu_s: float) -> Row:
    gap = Gap.of(gaps)
    return {
        "what": what,
        "problems": len(gaps),
        "gap_median": f"{gap.median:.2%}",
        "gap_mean": f"{gap.mean:.2%}",
        "gap_p95": f"{gap.p95:.2%}",
        "solved": f"{gap.solved:.0%}",
        "cpu_ms_per_problem": 1e3 * cpu_s / len(gaps),
    }


if __name__ == "__main__":
    main()
