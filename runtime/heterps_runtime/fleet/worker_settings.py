"""What the supervisor of an elastic run tells a process that it starts."""

from __future__ import annotations

from heterps_configs.documents.base import Document


class WorkerSettings(Document):
    """What a process is told when it is started.

    Attributes:
        device: Whose part it plays.
        number: Of the device in its cluster, which names the log.
        port: Of the supervisor's store.
        torch_device: Where the device should compute.
        leave_s: What it gets to leave a generation that has been superseded, beside the time in
            which it computes.
        generation: The newest when it starts, -1 before the first: a process of the device that is
            lost may have had a part in it, and this one has none.
        is_standby: It has no part in the generation that begins next, and time to prepare for its
            first one.
    """

    device: str
    number: int
    port: int
    torch_device: str = "cpu"
    leave_s: float
    generation: int = -1
    is_standby: bool = False
