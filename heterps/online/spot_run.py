"""A spot trace lived through for real: events of an elastic run, and what was predicted of it.

    heterps run PLAN --elastic --events spot.csv --settings fast.yaml

The trace is hastened (setting elastic.compress), devices that are lost are killed and those that
come back are started. The replay of the same trace in the simulator says beforehand what should
come of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from heterps.online.spot_strategies import FullPlans, Ours
from heterps_configs.documents.numbers import MOST_SECONDS
from heterps_configs.documents.plan import Plan
from heterps_configs.documents.run_events import RunEvent
from heterps_configs.documents.run_settings import CheckpointSettings
from heterps_configs.errors import HeterpsError
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import estimate
from heterps_envs.spot.availability import SpotMoment, hastened, spot_moments
from heterps_envs.spot.costs import DETECTION, PLANNING, REPEATED, STATE, SpotSettings
from heterps_envs.spot.records import SpotResult
from heterps_envs.spot.replay import replay
from heterps_envs.spot.trace import SpotTrace, read_spot_trace
from heterps_runtime.results.progress import StepProgress
from heterps_runtime.results.result import RunResult

# A killed process is noticed when the supervisor looks next.
KILL_DETECTION_S = 0.05
# Until the process of a device that comes back could take part: mostly imports.
START_S = 5.0
# Without checkpoints there is nothing to go back to but the beginning.
NEVER_S = MOST_SECONDS


@dataclass(frozen=True)
class SpotRunReport:
    """Predicted beside measured, over the time from the first step to the last.

    Attributes:
        duration_s: Measured; the prediction is for the same time.
        predicted_lost_s: By cause.
        measured_lost_s: The same; what no cause explains is under `other`.
        is_whole: All events of the trace lay within this time.
    """

    duration_s: float
    predicted_samples_per_s: float
    measured_samples_per_s: float
    predicted_lost_s: dict[str, float]
    measured_lost_s: dict[str, float]
    predicted_changes: int
    measured_changes: int
    is_whole: bool

    @property
    def relative_error(self) -> float:
        """Of the predicted goodput."""
        return self.predicted_samples_per_s / self.measured_samples_per_s - 1

    def to_mapping(self) -> dict[str, Any]:
        """Plain data, for `--json`."""
        return {**asdict(self), "relative_error": self.relative_error}

    def lines(self) -> Iterator[str]:
        """For people."""
        error = round(100 * self.relative_error, 1) + 0.0  # never -0.0
        yield (
            f"spot trace  goodput predicted {self.predicted_samples_per_s:.4g} samples/s, measured "
            f"{self.measured_samples_per_s:.4g} ({error:+.1f} %) over "
            f"{self.duration_s:.1f} s; changes: {self.predicted_changes} predicted, "
            f"{self.measured_changes} measured"
        )
        causes = ", ".join(
            f"{cause} {self.predicted_lost_s.get(cause, 0.0):.2f} / {seconds:.2f}"
            for cause, seconds in self.measured_lost_s.items()
        )
        yield f"            seconds lost, predicted / measured: {causes}"
        if not self.is_whole:
            yield "            the run ended before the trace: --steps was too small"


@dataclass
class SpotRun:
    """A trace for one run.

    Attributes:
        compress: Seconds of the trace that pass in one second.
        report: Once the run is over.
    """

    trace: SpotTrace
    compress: float = 1.0
    report: SpotRunReport | None = None
    _moments: tuple[SpotMoment, ...] = ()
    _times_s: list[float] = field(default_factory=list)

    @classmethod
    def of(cls, path: Path, compress: float) -> SpotRun:
        """Reads the trace.

        Raises:
            HeterpsError: The file is bad.
        """
        return cls(read_spot_trace(path), compress)

    def events(self, problem: Problem, plan: Plan) -> tuple[RunEvent, ...]:
        """What is done to the run: losses, and processes that start.

        Raises:
            HeterpsError: The trace is of another cluster, or the plan needs a device that is not
                there at first.
        """
        self._moments = hastened(spot_moments(self.trace, problem.cluster), self.compress)
        first = self._moments[0]
        missing = [name for name in plan.devices if name not in first.available]
        if missing:
            raise HeterpsError(
                f"{self.trace.source}: the plan needs {', '.join(missing)}, which the trace has "
                "not at 0 s"
            )
        events = []
        for before, after in pairwise(self._moments):
            for name in problem.device_named:
                was, there = name in before.available, name in after.available
                if was != there:
                    kind = "join" if there else "lose"
                    events.append(RunEvent(time_s=after.time_s, **{kind: name}))
        return tuple(events)

    def noting(self, on_progress: Callable[[StepProgress], None]) -> Callable[[StepProgress], None]:
        """Keeps the time of the first and of the last step."""

        def note(progress: StepProgress) -> None:
            now_s = time.monotonic()
            self._times_s[1:] = [now_s]
            on_progress(progress)

        return note

    def finish(
        self,
        result: RunResult,
        problem: Problem,
        plan: Plan,
        checkpoint: CheckpointSettings | None,
        tolerated: int,
    ) -> None:
        """Replays what the run went through, and compares."""
        duration_s = self._times_s[-1] - self._times_s[0] + result.step_times_s[0]
        number = len(result.losses)
        predicted = self._predicted(problem, plan, number, checkpoint, tolerated, duration_s)
        measured = _lost_s(result, duration_s)
        samples = number * problem.job.global_batch_size
        self.report = SpotRunReport(
            duration_s=duration_s,
            predicted_samples_per_s=predicted.goodput_samples_per_s,
            measured_samples_per_s=samples / duration_s,
            predicted_lost_s={cause: predicted.lost_s.get(cause, 0.0) for cause in measured},
            measured_lost_s=measured,
            predicted_changes=len(predicted.recoveries),
            measured_changes=len(result.recoveries),
            is_whole=self._moments[-1].time_s <= duration_s,
        )

    def _predicted(
        self,
        problem: Problem,
        plan: Plan,
        num_steps: int,
        checkpoint: CheckpointSettings | None,
        tolerated: int,
        duration_s: float,
    ) -> SpotResult:
        step_s = estimate(problem, plan).step_time_s
        every = checkpoint.every if checkpoint is not None and checkpoint.every else None
        settings = SpotSettings(
            detection_s=KILL_DETECTION_S,
            checkpoint_every_s=NEVER_S if every is None else every * step_s,
            horizon_s=num_steps * step_s,
        )
        moments = spot_moments(self.trace, problem.cluster)
        return replay(
            problem,
            hastened(moments, self.compress, START_S),
            duration_s,
            Ours(FullPlans(problem, plan), settings, tolerated),
            settings,
        )


def _lost_s(result: RunResult, duration_s: float) -> dict[str, float]:
    """Measured seconds without a new committed step, by cause."""
    lost = dict.fromkeys((DETECTION, PLANNING, STATE, REPEATED), 0.0)
    for entry in result.recoveries:
        lost[DETECTION] += entry.detected_s or 0.0
        # A device that joins is planned for, and a better plan waited for, while steps go on.
        lost[PLANNING] += entry.replanned_s if entry.lost else 0.0
        lost[STATE] += entry.connected_s + entry.state_s
        step_s = result.step_times_s[max(0, entry.from_step - result.first_step - 1)]
        lost[REPEATED] += entry.steps_repeated * step_s
    lost["other"] = duration_s - sum(result.step_times_s) - sum(lost.values())
    return lost
