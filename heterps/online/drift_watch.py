"""Drift as a run goes on: every step's times against the prediction, told to whoever watches."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable

from heterps_envs.online.drift_monitor import DriftEvent, DriftMonitor, Subject
from heterps_runtime.results.link_times import RouteSeconds
from heterps_runtime.results.phases import WARM_UP_STEPS
from heterps_runtime.results.progress import StepProgress
from heterps_runtime.results.step_figures import StagePasses

# What a watcher hears: what was measured and what was predicted.
Times = tuple[float, float]
# A factor whose logarithm is as near to that of the one that was told is no news.
NO_NEWS = 0.1


class ToldDrift:
    """What people know of drift: two look for it, each in its own way, and one tells."""

    def __init__(self) -> None:
        self._logarithms: dict[str, float] = {}

    def is_news(self, subject: str, factor: float) -> bool:
        """Whether a subject's factor was not told yet; from now on it was.

        Args:
            subject: Name of a device, of a link, or of a stage on its device.
            factor: Measured seconds over those that the run began with.
        """
        told, now = self._logarithms.get(subject), math.log(factor)
        if told is not None and abs(now - told) < NO_NEWS:
            return False
        self._logarithms[subject] = now
        return True


class DriftWatch:
    """Takes every step of a run.

    Args:
        on_message: Receives one line for people for each change that they do not know.
        told: What they know.

    Attributes:
        monitor: Which tests them.
        events: All changes so far.
    """

    def __init__(
        self,
        on_message: Callable[[str], None] = lambda text: None,
        told: ToldDrift | None = None,
    ) -> None:
        self.monitor, self.events = DriftMonitor(), list[DriftEvent]()
        self._on_message, self._told = on_message, told or ToldDrift()
        self._generation, self._first_step = -1, 0

    def take(self, progress: StepProgress) -> list[DriftEvent]:
        """Takes one step; returns what has changed, as noticed now."""
        if progress.generation != self._generation:
            self._generation, self._first_step = progress.generation, progress.step
            self.monitor.begin_plan()
        # The first steps of a plan warm up, and one of them is for memory.
        if progress.step - self._first_step < WARM_UP_STEPS:
            return []
        found = self.monitor.take(progress.step, ratios_of(progress))
        for event in found:
            if self._told.is_news(event.subject.name, event.factor):
                self._on_message(f"step {event.step + 1}: {event.text}")
        self.events += found
        return found

    @property
    def text(self) -> str:
        """What has drifted, for a line of progress; empty while all is as predicted."""
        factors = self.monitor.factors()
        drifted = [
            f"{subject} {factor:.2f} x"
            for subject, factor in factors.items()
            if factor != 1.0 and subject.kind != "stage"
        ]
        return f"drift {', '.join(drifted)}" if drifted else ""


def ratios_of(progress: StepProgress) -> dict[Subject, float]:
    """Measured over predicted seconds of devices, of links, and of stages that share a device.

    Predicted by the problem that the run began with.
    """
    found: dict[Subject, Times] = {}
    stages = _stage_times(progress.measured.stages, progress.unlearned.stages)
    of_device: dict[str, list[Times]] = defaultdict(list)
    for (device, _), times in stages.items():
        of_device[device].append(times)
    for device, several in of_device.items():
        found[Subject("device", device)] = _sum(several)
    for (device, stage), times in stages.items():
        if len(of_device[device]) > 1:
            found[Subject("stage", f"{stage} on {device}")] = times
    of_link = _link_times(progress.measured.links, progress.unlearned.links)
    for (source, destination), several in of_link.items():
        found[Subject("link", f"{source}->{destination}")] = _sum(several)
    return {
        subject: measured_s / predicted_s
        for subject, (measured_s, predicted_s) in found.items()
        if measured_s > 0 and predicted_s > 0
    }


def _stage_times(
    measured: Iterable[StagePasses], predicted: Iterable[StagePasses]
) -> dict[tuple[str, str], Times]:
    expected_s = {(p.device, p.stage): p.forward_s + p.backward_s for p in predicted}
    return {
        (p.device, p.stage): (p.forward_s + p.backward_s, expected_s[p.device, p.stage])
        for p in measured
        if (p.device, p.stage) in expected_s
    }


def _link_times(
    measured: Iterable[RouteSeconds], predicted: Iterable[RouteSeconds]
) -> dict[tuple[str, str], list[Times]]:
    expected_s = dict(predicted)
    found: dict[tuple[str, str], list[Times]] = defaultdict(list)
    for route, seconds in measured:
        found[route.source, route.destination].append((seconds, expected_s[route]))
    return found


def _sum(several: Iterable[Times]) -> Times:
    measured_s, predicted_s = zip(*several, strict=True)
    return sum(measured_s), sum(predicted_s)
