"""Where a run saves checkpoints, how often, and how many it keeps."""

from __future__ import annotations

from pydantic import Field, PositiveInt

from heterps_configs.documents.base import Document


class CheckpointSettings(Document):
    """Where and how often a run saves.

    Attributes:
        folder: All hosts of the run must see the same one.
        every: Steps between two checkpoints; 0 for only one, after the last step.
        keep: How many of the newest are kept, beside the one that the run started from.
        remote: URL of a folder that complete checkpoints are copied to (`RemoteStorage`); None for
            none.
    """

    folder: str
    every: int = Field(default=0, ge=0)
    keep: PositiveInt = 2
    remote: str | None = None

    def is_due(self, step: int, num_steps: int) -> bool:
        """Whether to save when `step` steps are done."""
        return step == num_steps or (self.every > 0 and step % self.every == 0)
