"""What a step held in memory, as measured: by device and by kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from heterps_configs.documents.base import Document
from heterps_configs.errors import HeterpsError
from heterps_configs.units import bytes_text


class MemoryByKind(Document):
    """Live bytes of one device at one moment; `memory_ledger` defines the kinds."""

    parameters: int = 0
    gradients: int = 0
    optimizer: int = 0
    activations: int = 0
    inputs: int = 0
    messages: int = 0
    workspace: int = 0


class MemoryReport(Document):
    """The peak of one device over one step.

    Attributes:
        peak_bytes: Most bytes that were alive at once, workspace left out.
        at_peak: What they were; its workspace is what was there besides.
        largest: The most of each kind by itself, at whatever moment.
        peak_with_workspace_bytes: Most bytes with the workspace of the running operations.
        peak_action: Kind of the action in which `peak_bytes` was reached.
        peak_stage: Its stage.
        peak_micro_batch: Its micro-batch.
        allocated_bytes: `torch.cuda.max_memory_allocated` of the step; None on a CPU.
    """

    device: str
    peak_bytes: int
    at_peak: MemoryByKind
    largest: MemoryByKind
    peak_with_workspace_bytes: int
    peak_action: str
    peak_stage: str
    peak_micro_batch: int
    allocated_bytes: int | None = None


class OutOfMemoryError(HeterpsError):
    """A device needs more memory than it has.

    Attributes:
        device: Its name.
        rank: Its rank.
    """

    def __init__(self, report: MemoryReport, limit_bytes: int, rank: int) -> None:
        self.device, self.rank = report.device, rank
        where = f"the {report.peak_action} pass of stage {report.peak_stage!r}"
        if report.peak_action in ("receive", "send"):
            where = f"a {report.peak_action} of stage {report.peak_stage!r}"
        if report.peak_action in ("reduce", "step"):
            where = "the gradient all-reduce" if report.peak_action == "reduce" else "the optimizer"
        else:
            where += f", micro-batch {report.peak_micro_batch}"
        super().__init__(
            f"{report.device} is out of memory in {where}: needs {bytes_text(report.peak_bytes)}, "
            f"{bytes_text(report.peak_bytes - limit_bytes)} more than the "
            f"{bytes_text(limit_bytes)} allowed"
        )


def check_limits(reports: Sequence[MemoryReport], limit_bytes: Mapping[str, int]) -> None:
    """Compares measured peaks with what devices have.

    Args:
        reports: One for each device, by rank.
        limit_bytes: By device; others have no limit.

    Raises:
        OutOfMemoryError: For the device that lacks most.
    """
    missing = {
        rank: report.peak_bytes - limit_bytes[report.device]
        for rank, report in enumerate(reports)
        if report.device in limit_bytes
    }
    rank = max(missing, key=lambda rank: missing[rank], default=-1)
    if rank >= 0 and missing[rank] > 0:
        report = reports[rank]
        raise OutOfMemoryError(report, limit_bytes[report.device], rank)
