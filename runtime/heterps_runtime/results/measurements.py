"""Measurements: median seconds of every stage's passes, published while a run goes on."""

from __future__ import annotations

import statistics
from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from heterps_configs.documents.base import Document
from heterps_configs.documents.job import Job
from heterps_configs.documents.stage import Stage
from heterps_runtime.execution.action_records import ActionRecord
from heterps_runtime.specification.run import RunSpecification

if TYPE_CHECKING:
    from heterps_envs.online.correction import StageMeasurement


class StageTimes(Document):
    """One stage on one device: median seconds of one full micro-batch.

    Attributes:
        first_layer: Index of the stage's first layer.
        last_layer: Index of its last layer (inclusive).
        num_samples: Forward passes that the median is taken over.
        way: The stage as the plan has it, where it is on a group, or has layers that are computed
            again or wait in host memory.
    """

    device: str
    stage: str
    first_layer: int
    last_layer: int
    forward_s: float
    backward_s: float
    num_samples: int
    way: Stage | None = None


class LinkMeasurement(Document):
    """Median seconds of the messages of one size on a link.

    Attributes:
        num_bytes: Of each.
        is_queued: They stood after others: their bytes alone, without the latency.
        num_samples: Steps that the median is taken over.
    """

    source: str
    destination: str
    num_bytes: float
    seconds: float
    is_queued: bool
    num_samples: int


class Measurements(Document):
    """What the last steps took, under one plan.

    Attributes:
        step: Index of the last measured step.
        num_steps: Steps of the whole run.
        generation: 0 for the first plan, one more for every re-plan.
        step_time_s: Median step time of the window.
        optimizer_s: Median seconds of the optimizer step of each device.
        links: Of those on which receivers waited, so that the arrival is known.
        own_s: Of the devices of tensor-parallel groups, median seconds of the passes of a step
            without waiting for the other devices of the group; 0 for other devices.
    """

    step: int
    num_steps: int
    generation: int
    step_time_s: float
    stages: tuple[StageTimes, ...]
    optimizer_s: dict[str, float]
    links: tuple[LinkMeasurement, ...] = ()
    own_s: Mapping[str, float] = {}

    @property
    def remaining_steps(self) -> int:
        """Steps that are still to be run."""
        return self.num_steps - self.step - 1

    def stage_measurements(self) -> list[StageMeasurement]:
        """The form that `heterps_envs.online.correction` takes."""
        from heterps_envs.online.correction import StageMeasurement

        return [
            StageMeasurement(
                entry.device,
                entry.first_layer,
                entry.last_layer,
                entry.forward_s,
                entry.backward_s,
                entry.way,
                self._busy_share(entry),
            )
            for entry in self.stages
        ]

    def _busy_share(self, entry: StageTimes) -> float:
        """What a device of a group took itself over what the slowest one took; 1 where unknown."""
        group = entry.way.devices if entry.way else ()
        own_s, most_s = (
            max((self.own_s.get(name, 0.0) for name in names), default=0.0)
            for names in ((entry.device,), group)
        )
        return own_s / most_s if own_s > 0 and len(group) > 1 else 1.0


# Steps whose durations are kept, at most.
MOST_STEPS = 4096

# Seconds by (kind, stage, micro-batch); the kind is `forward`, `backward` or `step`.
PassSeconds = dict[tuple[str, str, int], float]


def pass_seconds(job: Job, records: Sequence[ActionRecord]) -> PassSeconds:
    """What the passes and the optimizer of one device took in one step.

    Of a stage's micro-batches the largest count, scaled to full ones where none is full. A backward
    pass in two parts, as in zero-bubble schedules, counts as their sum.
    """
    sizes, largest = job.micro_batch_sizes, dict[str, int]()
    for record in records:
        if record.kind == "forward":
            size = sizes[record.micro_batch]
            largest[record.stage] = max(size, largest.get(record.stage, 0))
    taken_s: PassSeconds = defaultdict(float)
    for record in records:
        kind = "backward" if record.kind.startswith("backward") else record.kind
        seconds = record.end_s - record.start_s
        if kind in ("forward", "backward"):
            if sizes[record.micro_batch] < largest[record.stage]:
                continue
            seconds *= job.micro_batch_size / largest[record.stage]
        elif kind != "step":
            continue
        taken_s[kind, record.stage, record.micro_batch] += seconds
    return taken_s


class ActionTimes:
    """Collects the durations of one device's actions until they are taken.

    Of many steps it keeps every second, then every fourth, and so on, so that a run of any length
    needs little memory: medians of thousands of steps hardly differ from those of all.
    """

    def __init__(self, specification: RunSpecification, device: str) -> None:
        self._plan, self._device = specification.plan, device
        self._seconds: dict[tuple[str, str, int], array[float]] = defaultdict(lambda: array("d"))
        self._num_steps, self._num_kept, self._every = 0, 0, 1

    def add(self, records: Iterable[ActionRecord]) -> None:
        """Takes one step."""
        self.add_passes(pass_seconds(self._plan.job, list(records)))

    def add_passes(self, passes: PassSeconds) -> None:
        """Takes one step, as `pass_seconds` has it."""
        is_kept = self._num_steps % self._every == 0
        self._num_steps += 1
        if not is_kept:
            return
        for key, seconds in passes.items():
            self._seconds[key].append(seconds)
        self._num_kept += 1
        if self._num_kept == MOST_STEPS:
            self._every, self._num_kept = 2 * self._every, MOST_STEPS // 2
            for key, column in self._seconds.items():
                self._seconds[key] = column[::2]

    def stages(self) -> list[StageTimes]:
        """The medians of every stage that has run."""
        found = []
        for stage in self._plan.stages:
            forward = self._of("forward", stage.name)
            if self._device in stage.devices and forward:
                found.append(
                    StageTimes(
                        device=self._device,
                        stage=stage.name,
                        first_layer=stage.first_layer,
                        last_layer=stage.last_layer,
                        forward_s=statistics.median(forward),
                        backward_s=statistics.median(self._of("backward", stage.name)),
                        num_samples=len(forward),
                        way=None if _is_plain(stage) else stage,
                    )
                )
        return found

    def optimizer_s(self) -> float:
        """Median seconds of the optimizer step; 0 for an idle device."""
        return statistics.median(self._of("step", "") or [0.0])

    def clear(self) -> None:
        """Begins a new window."""
        self._seconds.clear()
        self._num_steps, self._num_kept, self._every = 0, 0, 1

    def _of(self, kind: str, stage: str) -> list[float]:
        """Of all micro-batches."""
        columns = (column for key, column in self._seconds.items() if key[:2] == (kind, stage))
        return [seconds for column in columns for seconds in column]


def _is_plain(stage: Stage) -> bool:
    """Whether one device computes each layer once, and keeps what it needs again."""
    return stage.degree == 1 and not stage.recompute_layers and not stage.offloaded_layers


def measurements_path(directory: Path, step: int) -> Path:
    """Where the measurements up to `step` are published."""
    return directory / f"measurements-{step}.json"


def newest_measurements(directory: Path, after_step: int) -> Measurements | None:
    """The newest published measurements; None when there are none after `after_step`."""
    steps = [int(path.stem.split("-")[1]) for path in directory.glob("measurements-*.json")]
    newest = max(steps, default=-1)
    if newest <= after_step:
        return None
    text = measurements_path(directory, newest).read_text()
    return Measurements.model_validate_json(text)
