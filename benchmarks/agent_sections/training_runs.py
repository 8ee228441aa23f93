"""Training runs of several seeds: steps per second, and CPU seconds until the gaps are closed."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from benchmarks.agent_sections.outputs import shown
from benchmarks.agent_sections.section import Row, Settings, TableRows, progress_bar
from heterps_agents.callbacks import TrainingProgress
from heterps_agents.policy import Policy
from heterps_agents.training import train
from heterps_configs import library
from heterps_configs.training_config import TrainingConfig

CONFIG = "quick"
SEEDS, EVALUATION_EVERY_S = (0, 1, 2), 5.0
QUICK_SEEDS, QUICK_SECONDS = (0,), 10.0
# A median below this counts as zero, as in the column `optimal` of other tables.
SOLVED_MEDIAN = 1e-3
# Beam 16's mean and 95th percentile that the tail has to reach.
TAIL_MEAN, TAIL_P95 = 3e-3, 2e-3
# Scalars of a run.
GREEDY_MEDIAN = "placement/greedy_gap_median"
BEAM_MEAN, BEAM_P95 = "placement/beam16_gap_mean", "placement/beam16_gap_p95"
ENVIRONMENT_SHARE = "time/environment_share"


class Curve(NamedTuple):
    """One scalar of a run, over steps."""

    step: list[int]
    value: list[float]

    def first_below(self, limit: float) -> int | None:
        """The first step at which it is below; None where it never is."""
        pairs = zip(self.step, self.value, strict=True)
        return next((step for step, value in pairs if value < limit), None)


class Stopwatch:
    """CPU seconds of this process by training steps; called after every update."""

    def __init__(self) -> None:
        self._start = time.process_time()
        self._steps, self._cpu_s = [0], [0.0]

    def __call__(self, progress: TrainingProgress) -> None:
        """Notes where the run stands."""
        if len(self._steps) == 1:  # what came before the run's own clock is preparation
            self._start = max(self._start, time.process_time() - progress.seconds)
        self._steps.append(progress.steps)
        self._cpu_s.append(time.process_time() - self._start)

    @property
    def cpu_s(self) -> float:
        """Until now."""
        return self._cpu_s[-1]

    def at(self, step: int) -> float:
        """CPU seconds when the run had so many steps."""
        return float(np.interp(step, self._steps, self._cpu_s))


def trained_policies(settings: Settings) -> tuple[TableRows, dict[str, Policy]]:
    """Trains a policy for each seed; how that went, and the policies by name."""
    config = library.load("training", CONFIG)
    assert isinstance(config, TrainingConfig)
    config = config.model_copy(update={"evaluation_every_s": EVALUATION_EVERY_S})
    if settings.quick:
        config = config.model_copy(update={"budget_s": QUICK_SECONDS})
    seeds = [settings.seed + seed for seed in (QUICK_SEEDS if settings.quick else SEEDS)]
    rows, policies = [], {}
    with progress_bar("training runs", len(seeds)) as advance, TemporaryDirectory() as folder:
        for seed in seeds:
            directory, watch = Path(folder) / str(seed), Stopwatch()
            result = train(config.model_copy(update={"seed": seed}), directory, progress=watch)
            policies[f"seed {seed}"] = result.policy
            rows.append(run_row(seed, result.steps, watch, _curves(directory)))
            advance(f"seed {seed}")
    note = (
        f"Config `{CONFIG}` ({config.budget_s:g} s); CPU seconds of the process, evaluation every "
        f"{EVALUATION_EVERY_S:g} s included. Median 0: greedy decoding's median gap below "
        f"{SOLVED_MEDIAN:.1%}. Tail: beam 16 with a mean gap below {TAIL_MEAN:.1%} and a 95th "
        f"percentile below {TAIL_P95:.1%}. `never`: not within the run."
    )
    if len(rows) > 1:
        rows.append(_spread(rows))
    return TableRows("runs", "training: runs", note, rows), policies


def run_row(seed: int, steps: int, watch: Stopwatch, curves: Mapping[str, Curve]) -> Row:
    """One run's line of the table."""
    medians = curves.get(GREEDY_MEDIAN, Curve([], []))
    solved = medians.first_below(SOLVED_MEDIAN)
    return {
        "seed": str(seed),
        "steps": steps,
        "cpu_s": watch.cpu_s,
        "steps_per_cpu_s": steps / watch.cpu_s,
        "environment_share": _last(curves, ENVIRONMENT_SHARE),
        "cpu_s_to_median_0": "never" if solved is None else watch.at(solved),
        "cpu_s_to_tail": _tail(watch, curves),
    }


def _tail(watch: Stopwatch, curves: Mapping[str, Curve]) -> float | str:
    """CPU seconds until beam 16 has both numbers of the tail at once."""
    if BEAM_MEAN not in curves or BEAM_P95 not in curves:
        return ""
    means, p95s = curves[BEAM_MEAN], curves[BEAM_P95]
    for step, mean, p95 in zip(means.step, means.value, p95s.value, strict=True):
        if mean < TAIL_MEAN and p95 < TAIL_P95:
            return watch.at(step)
    return "never"


def _last(curves: Mapping[str, Curve], tag: str) -> float | str:
    return curves[tag].value[-1] if tag in curves else ""


def _spread(rows: Sequence[Row]) -> Row:
    """Smallest and largest of each column."""
    spread: Row = {"seed": "spread"}
    for name in list(rows[0])[1:]:
        numbers = [row[name] for row in rows if not isinstance(row[name], str)]
        texts = {row[name] for row in rows if isinstance(row[name], str)}
        ends = [shown(name, pick(numbers)) for pick in (min, max)] if numbers else []
        spread[name] = " - ".join([*dict.fromkeys(ends), *sorted(texts)])
    return spread


def _curves(directory: Path) -> dict[str, Curve]:
    """The scalars of a run's TensorBoard events."""
    events = EventAccumulator(str(directory)).Reload()
    curves = {}
    for tag in events.Tags()["scalars"]:
        points = events.Scalars(tag)
        curves[tag] = Curve([p.step for p in points], [p.value for p in points])
    return curves
