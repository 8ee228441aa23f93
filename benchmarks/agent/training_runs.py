"""Training runs of several seeds: steps per second, and CPU seconds until the gaps are closed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from benchmarks.agent.outputs import shown
from benchmarks.agent.section import Row, Settings, TableRows, progress_bar
from heterps_agents.boards.event_file import EVENT_FILES
from heterps_agents.boards.training import LEARNING
from heterps_agents.learned.efforts import efforts
from heterps_agents.learned.policy import Policy
from heterps_agents.training.milestones import MILESTONES
from heterps_agents.training.train import train
from heterps_configs import library
from heterps_configs.documents.training import ChainTrainingConfig

CONFIG = "quick"
SEEDS, EVALUATION_EVERY_S = (0, 1, 2), 5.0
QUICK_SEEDS, QUICK_SECONDS = (0,), 10.0
ENVIRONMENT_SHARE = "train_time/environment_share"


def trained_policies(settings: Settings) -> tuple[TableRows, dict[str, Policy]]:
    """Trains a policy for each seed; how that went, and the policies by name."""
    config = library.load("training", CONFIG)
    assert isinstance(config, ChainTrainingConfig)
    config = config.changed(evaluation_every_s=EVALUATION_EVERY_S)
    if settings.quick:
        config = config.changed(budget_s=QUICK_SECONDS)
    seeds = [settings.seed + seed for seed in (QUICK_SEEDS if settings.quick else SEEDS)]
    rows, policies = [], {}
    with progress_bar("training runs", len(seeds)) as advance, TemporaryDirectory() as folder:
        for seed in seeds:
            directory = Path(folder) / str(seed)
            result = train(config.changed(seed=seed), directory)
            policies[f"seed {seed}"] = result.policy
            rows.append(run_row(result.policy.meta, directory))
            advance(f"seed {seed}")
    ends = {"seconds": config.budget_s, "environment steps": config.total_steps}
    end = " or ".join(f"{value:,} {unit}" for unit, value in ends.items() if value is not None)
    what = f"Config `{CONFIG}`, {end} each."
    return runs_table(what, rows), policies


def given_runs(policies: Mapping[str, Policy], files: Sequence[str]) -> TableRows:
    """How policies were trained that are there already, as far as they say."""
    rows = [
        run_row(policy.meta, Path(file).parent)
        for policy, file in zip(policies.values(), files, strict=True)
    ]
    return runs_table("Policies that were trained before.", rows)


def runs_table(what: str, rows: list[Row]) -> TableRows:
    """The table of runs, with the spread of its columns."""
    goals = ", ".join(f"*{name}*" for name in MILESTONES)
    note = (
        f"{what} CPU seconds of training, the optima of its problems included, evaluation left "
        f"out; those of PPO are what imitation leaves. Until {goals} (on the "
        "development problems, at the run's first evaluation that shows it); `never`: not within "
        "the run. The environment's share is of the time of PPO, which its steps are of."
    )
    spread = [_spread(rows)] if len(rows) > 1 else []
    return TableRows("runs", "training: runs", note, [*rows, *spread])


def run_row(meta: Mapping[str, Any], directory: Path) -> Row:
    """One run's line: what its policy remembers, and what its events say where they are."""
    cpu_s, steps = meta.get("cpu_s"), meta.get("steps")
    ppo_s = meta.get("ppo_cpu_s", cpu_s)
    row: Row = {
        "seed": str(meta.get("seed", "?")),
        "steps": "" if steps is None else steps,
        "cpu_s": "" if cpu_s is None else cpu_s,
        "ppo_cpu_s": "" if ppo_s is None else ppo_s,
        "steps_per_cpu_s": steps / ppo_s if steps and ppo_s else "",
        "environment_share": _last_value(directory, ENVIRONMENT_SHARE),
    }
    reached = meta.get("milestones")
    for name in MILESTONES:
        milestone = None if reached is None else reached.get(name, {}).get("cpu_s", "never")
        row[f"cpu_s until {name}"] = "" if milestone is None else milestone
    return row


def _last_value(directory: Path, tag: str) -> float | str:
    """The last value of a scalar in a run's TensorBoard events; empty without any."""
    folder = directory / LEARNING
    if not any(folder.glob(EVENT_FILES)):
        return ""
    events = EventAccumulator(str(folder)).Reload()
    return events.Scalars(tag)[-1].value if tag in events.Tags()["scalars"] else ""


def _spread(rows: Sequence[Row]) -> Row:
    """Smallest and largest of each column."""
    spread: Row = {"seed": "spread"}
    for name in list(rows[0])[1:]:
        numbers = [row[name] for row in rows if not isinstance(row[name], str)]
        texts = {row[name] for row in rows if isinstance(row[name], str)} - {""}
        ends = [shown(name, pick(numbers)) for pick in (min, max)] if numbers else []
        spread[name] = " to ".join([*dict.fromkeys(ends), *sorted(texts)])
    return spread


def shipped_seeds(policy: Policy) -> TableRows | None:
    """What a policy's file says of all seeds that were trained with its config; None: nothing."""
    scores = policy.meta.get("seed_scores")
    if not scores:
        return None
    rows = [
        {"seed": seed, "set": name, "effort": effort, **_numbers_of(numbers)}
        for seed, sets in scores.items()
        for name, numbers_of_efforts in sets.items()
        for effort, numbers in numbers_of_efforts.items()
    ]
    names = list(efforts())
    rows.sort(key=lambda row: (row["set"], names.index(row["effort"])))
    note = (
        "Every seed that was trained with the shipped policy's config, measured when it was made "
        "and kept in its file."
    )
    return TableRows("seeds", "training: seeds of the shipped policy", note, rows)


def _numbers_of(numbers: Mapping[str, float]) -> Row:
    """Scores by the names of this benchmark's columns."""
    names = {"median": "gap_median", "mean": "gap_mean", "p95": "gap_p95", "solved": "optimal"}
    return {names.get(name, name): value for name, value in numbers.items()}
