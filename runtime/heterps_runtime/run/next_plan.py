"""The next plan of a run: rank 0 finds it in the run directory, all ranks take it up together."""

from __future__ import annotations

from pathlib import Path

from heterps_runtime.specification.run import RunSpecification, next_plan_path
from heterps_runtime.transport.communication import Communicator


class NextPlan:
    """Where a run learns of its next plan. All ranks ask together, at the boundary of a step.

    Args:
        directory: Run directory.
        communicator: The processes.
    """

    def __init__(self, directory: Path, communicator: Communicator) -> None:
        self._directory, self._communicator = directory, communicator
        self._found: RunSpecification | None = None

    def is_due(self, generation: int, step: int) -> bool:
        """Whether there is one that begins with a step.

        Args:
            generation: Of the plan of now.
            step: That comes next.
        """
        if self._communicator.rank == 0 and self._found is None:
            path = next_plan_path(self._directory, generation + 1)
            if path.exists():
                self._found = RunSpecification.from_json_file(path)
        is_due = self._found is not None and step >= self._found.from_step
        return bool(self._communicator.broadcast_numbers(float(is_due))[0])

    def take(self) -> RunSpecification:
        """The plan that is due."""
        text = self._communicator.broadcast_text(
            self._found.model_dump_json() if self._found else None
        )
        self._found = None
        return RunSpecification.from_json(text)
