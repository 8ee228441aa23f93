"""Reads from checkpoints only those parts of tensors that are missing, around what is damaged."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from heterps_configs.errors import HeterpsError
from heterps_runtime.state.checkpoint_storage import SavedTensors
from heterps_runtime.state.checkpoint_tiers import SavedStep
from heterps_runtime.state.layout import (
    HeldState,
    Layouts,
    State,
    TensorLayout,
    blank_state,
    checkpoint_key,
    keys_by_name,
    places_of,
)
from heterps_runtime.tensor_parallel.regions import Box, num_elements, slice_around, view_of

# Of tensors, by name and key, what has to be read.
MissingBoxes = Mapping[tuple[str, str], Sequence[Box]]
# Read at a time: progress is reported in between.
_BATCH_BYTES = 64 * 2**20


class ReadCheckpoints:
    """The checkpoints that one rank reads from; what cannot be read is left out from then on.

    Attributes:
        remarks: What was found damaged, or could not be reached.
    """

    def __init__(self) -> None:
        self.remarks: list[str] = []
        # What cannot be read: (place, name), an empty name for all of it.
        self._damaged: set[tuple[str, str]] = set()
        self._opened: dict[str, SavedTensors] = {}

    def open(self, saved: SavedStep) -> SavedTensors | None:
        """What a checkpoint holds; None where its table of contents cannot be read."""
        if saved.place not in self._opened and (saved.place, "") not in self._damaged:
            try:
                self._opened[saved.place] = saved.open()
            except HeterpsError as error:
                self._damaged.add((saved.place, ""))
                self._remark(str(error))
        return self._opened.get(saved.place)

    def names(self, saved: SavedStep) -> set[str]:
        """The parameters and buffers that a checkpoint holds, as far as they can be read."""
        tensors = self.open(saved)
        if tensors is None:
            return set()
        names = keys_by_name(tensors.names)
        return {name for name in names if (saved.place, name) not in self._damaged}

    def read(self, saved: SavedStep, tensors: SavedTensors, batch: Layouts) -> HeldState:
        """Reads some tensors; one by one where all together fail: to know what is damaged.

        Args:
            saved: The checkpoint.
            tensors: What it holds.
            batch: Of it, what is wanted.

        Returns:
            What could be read.
        """
        groups = [batch] if len(batch) == 1 else [batch, *({n: e} for n, e in batch.items())]
        state: State = {}
        for index, group in enumerate(groups):
            found = blank_state(group)
            targets = {
                checkpoint_key(name, key): tensor
                for name, own in found.items()
                for key, tensor in own.items()
            }
            places = {
                checkpoint_key(name, layout.key): layout.place
                for name, layouts in group.items()
                for layout in layouts
                if layout.place is not None
            }
            try:
                tensors.read(targets, places)
            except HeterpsError as error:
                if len(group) == 1:
                    self._damaged.add((saved.place, next(iter(group))))
                    self._remark(str(error))
            else:
                state |= found
                if index == 0:
                    break
        return HeldState(state, places_of({name: batch[name] for name in state}))

    def _remark(self, text: str) -> None:
        if text not in self.remarks:
            self.remarks.append(text)


def saved_layouts(
    tensors: SavedTensors, names: Collection[str]
) -> dict[str, dict[str, TensorLayout]]:
    """What a checkpoint has of some names, by name and key."""
    return {
        name: {
            key: TensorLayout(key, tensors.shape(text), tensors.blank(text).dtype)
            for key, text in keys.items()
        }
        for name, keys in keys_by_name(tensors.names).items()
        if name in names
    }


def parts_around(layouts: Layouts, boxes: MissingBoxes, targets: Layouts) -> Layouts:
    """What has to be read of tensors: all that is wanted, or a slice around what is missing.

    Args:
        layouts: What a rank wants of a checkpoint's tensors.
        boxes: What it misses of them.
        targets: What it wants, of tensors of which some rank has a part.
    """
    found: Layouts = {}
    for name, entries in layouts.items():
        known = {layout.key: layout for layout in targets.get(name, ())}
        parts = []
        for layout in entries:
            missing = boxes.get((name, layout.key), [])
            if layout.key not in known:
                parts.append(layout)
            elif missing:
                size = layout.dtype.itemsize * sum(num_elements(box) for box in missing)
                place = slice_around(layout.whole_shape, missing)
                parts.append(layout if size == layout.num_bytes else layout.part(place))
        found[name] = tuple(parts)
    return found


def put(found: HeldState, state: HeldState, boxes: MissingBoxes) -> None:
    """Adds what was read: by reference what is all that is wanted of a tensor.

    Args:
        found: What was read.
        state: What a rank wants, with what it has in it.
        boxes: What it misses.
    """
    for name, tensors in found.tensors.items():
        own = state.tensors.setdefault(name, {})
        for key, tensor in tensors.items():
            missing, target = boxes.get((name, key), []), own.get(key)
            if target is None or target.numel() == sum(map(num_elements, missing)):
                own[key] = tensor
                continue
            for box in missing:
                to = view_of(target, state.place(name, key), box)
                to.copy_(view_of(tensor, found.place(name, key), box))


def batches(layouts: Layouts) -> Iterator[Layouts]:
    """Not too many bytes at a time."""
    batch: Layouts = {}
    size = 0
    for name, entries in layouts.items():
        need = sum(layout.num_bytes for layout in entries)
        if batch and size + need > _BATCH_BYTES:
            yield batch
            batch, size = {}, 0
        batch[name] = entries
        size += need
    if batch:
        yield batch
