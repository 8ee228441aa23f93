"""What the steps under one plan take: each rank's part of it, told after a step or published."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from heterps_configs.documents.yaml_files import write_text
from heterps_runtime.execution.action_records import ActionRecord
from heterps_runtime.results.link_times import LinkTimes, LinkWindow, Taken
from heterps_runtime.results.measurements import (
    ActionTimes,
    Measurements,
    PassSeconds,
    StageTimes,
    measurements_path,
    pass_seconds,
)
from heterps_runtime.results.phases import WARM_UP_STEPS
from heterps_runtime.results.step_figures import busy_s, row_of_passes
from heterps_runtime.specification.run import RunSpecification
from heterps_runtime.transport.communication import Communicator
from heterps_runtime.transport.group_sums import GroupSums


class ObservedSteps:
    """Takes the steps of a rank under one plan.

    Before a step `begin`, after it `row`, on rank 0 `figures`, then `count` and `publish_if_due`.

    Args:
        specification: With the plan.
        device: Of this rank.
        communicator: The processes.
        first_step: Under this plan.
        sums: Over this rank's tensor-parallel group; None where it has none.

    Attributes:
        times: Of the passes of all steps that count.
    """

    def __init__(
        self,
        specification: RunSpecification,
        device: str,
        communicator: Communicator,
        first_step: int,
        sums: GroupSums | None,
    ) -> None:
        self._specification, self._device = specification, device
        self._communicator, self._first_step = communicator, first_step
        self.times, self._window = (ActionTimes(specification, device) for _ in range(2))
        self._step_times_s: list[float] = []
        self._passes: PassSeconds = {}
        self._sums, self._waited_s = sums, 0.0
        # What the passes of a step took without waiting for the others of the group.
        self._own_s = 0.0
        self._all_own_s: list[float] = []
        self._taken: list[Taken] = []
        self._links: LinkTimes | None = None
        if specification.watches_links:
            plan = specification.plan
            machines = [place.machine for place in communicator.places]
            self._links = LinkTimes(plan, specification.actions, specification.ranks, machines)
            self._link_window = LinkWindow(specification.profile, plan, self._links.routes)

    def begin(self) -> None:
        """A step begins."""
        self._waited_s = 0.0 if self._sums is None else self._sums.waited_s

    def row(self, step: int, start_s: float, records: Sequence[ActionRecord]) -> list[float]:
        """What this rank tells the others of a step: busy seconds, stages, messages.

        Args:
            step: Its number.
            start_s: When the step began.
            records: Its actions.
        """
        plan = self._specification.plan
        self._passes = pass_seconds(plan.job, records)
        figures = row_of_passes(plan, self._device, busy_s(records), self._passes)
        links = self._links.row(self._device, start_s, records) if self._links else []
        if self._sums is not None:
            waited_s = self._sums.waited_s - self._waited_s
            self._own_s = max(self._in_passes_s(step, records, waited_s), 0.0)
        return [*figures, *links]

    def _in_passes_s(self, step: int, records: Sequence[ActionRecord], waited_s: float) -> float:
        """Seconds of a step's passes, without those in which this rank waited for its group."""
        specification = self._specification
        in_passes_s = busy_s([record for record in records if record.kind != "step"])
        if specification.emulation is None:
            return in_passes_s - waited_s
        own, group = specification.own_slowdown, specification.group_slowdown
        return in_passes_s * own(self._device, step) / group(self._device, step)

    def figures(self, rows: Sequence[Sequence[float]]) -> dict[str, Any]:
        """What rank 0 tells of a step.

        Args:
            rows: `row` of each rank.
        """
        own = len(rows[0]) - (self._links.width if self._links else 0)
        if self._links:
            self._taken = self._links.taken([row[own:] for row in rows])
        return {"figures": [row[:own] for row in rows], "links": self._taken}

    def count(self, step: int, step_time_s: float) -> None:
        """Takes a step into the medians, unless it is a warm-up step and there will be others.

        Args:
            step: Its number.
            step_time_s: That of the slowest rank.
        """
        specification = self._specification
        last_step = specification.num_steps - 1 - self._first_step
        if step - self._first_step < min(WARM_UP_STEPS, last_step):
            return
        self.times.add_passes(self._passes)
        if specification.is_online:
            self._window.add_passes(self._passes)
            self._step_times_s.append(step_time_s)
            self._all_own_s.append(self._own_s)
            if self._taken:
                self._link_window.add(self._taken)

    def publish_if_due(self, step: int, directory: Path) -> None:
        """Writes what the last steps took, where planners wait for it; all ranks gather it.

        Args:
            step: The last one.
            directory: Run directory.
        """
        specification = self._specification
        is_due = (step + 1) % specification.measure_every == 0
        if specification.is_online and is_due and self._step_times_s:
            self._publish(step, directory)

    def _publish(self, step: int, directory: Path) -> None:
        specification, window = self._specification, self._window
        gathered = self._communicator.gather(
            (window.stages(), window.optimizer_s(), statistics.median(self._all_own_s)),
            tuple[list[StageTimes], float, float],
        )
        if self._communicator.rank == 0:
            devices = specification.devices
            measurements = Measurements(
                step=step,
                num_steps=specification.num_steps,
                generation=specification.generation,
                step_time_s=statistics.median(self._step_times_s),
                stages=tuple(entry for stages, *_ in gathered for entry in stages),
                optimizer_s={devices[r]: seconds for r, (_, seconds, _) in enumerate(gathered)},
                own_s={devices[r]: seconds for r, (*_, seconds) in enumerate(gathered)},
                links=self._link_window.measurements(),
            )
            path = measurements_path(directory, step)
            write_text(path, measurements.model_dump_json())
        window.clear()
        self._link_window.clear()
        self._step_times_s.clear()
        self._all_own_s.clear()
