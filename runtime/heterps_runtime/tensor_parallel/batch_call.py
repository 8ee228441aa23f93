"""Calls of a model's units that a group can split by samples: what of each belongs to samples."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from heterps_configs.documents.base import Document


class BatchCall(Document):
    """One call of a unit, each rank of a group with its own samples.

    Attributes:
        number: Of the call, in the recording of a pass.
        path: Of the unit.
        taken: For each tensor that it takes, how many rows (places of the first dimension) each
            sample has; 0 where it is of no sample.
        made: The same for each tensor that it returns.
        draws: The same for each time that it draws random numbers.
        readers: For each tensor that it returns, the calls that take it as it is; None where
            something else reads it, too.
    """

    number: int
    path: str
    taken: tuple[int, ...]
    made: tuple[int, ...]
    draws: tuple[int, ...] = ()
    readers: tuple[tuple[int, ...] | None, ...] = ()

    def stays_apart(self, leaf: int, own: Collection[int]) -> bool:
        """Whether only calls that are split by samples, too, read one of its tensors.

        Args:
            leaf: Which tensor.
            own: These calls.
        """
        found = self.readers[leaf]
        return found is not None and all(reader in own for reader in found)


def gathered(calls: Iterable[BatchCall], own: Collection[int]) -> dict[int, tuple[int, ...]]:
    """By call, the tensors of samples that somebody reads whole.

    Args:
        calls: Of the model.
        own: Numbers of those that one stage splits by samples.
    """
    return {
        call.number: tuple(
            leaf
            for leaf, rows in enumerate(call.made)
            if rows and not call.stays_apart(leaf, own) and call.readers[leaf] != ()
        )
        for call in calls
        if call.number in own
    }
