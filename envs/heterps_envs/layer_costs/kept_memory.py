"""Bytes that layers keep from the forward to the backward pass, and how they add up in a stage.

A stage keeps, of one micro-batch, what its layers save beside the tensors that cross cuts, what
came in over its front cut, and what goes out over its back cut; of a cut between two of its layers
it keeps what either side saves. So a tensor counts once, whoever keeps it:

    kept(a .. b) = in[a] + sum over a..b of own[l] + sum over inner cuts of saved[c] + out[b]
                   + max over a..b of shared[l]
    saved[c]     = max(saved by the layer in front, saved by the layer behind)

Received tensors stay until the backward pass because their gradients go back; outputs stay because
the backward pass begins at them. A layer that is computed again keeps no `own` bytes, but all that
enters it; what it saves exists only during its backward pass. A layer that is offloaded keeps
nothing of its own on the device.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np

from heterps_envs.arrays import Floats, Integers
from heterps_envs.layer_costs.backward_peaks import BackwardPeaks


@dataclass(frozen=True)
class LayerMemory:
    """L layers on T device classes, one full micro-batch.

    Attributes:
        own_bytes: (L, T) saved for the backward pass, without what crosses a cut.
        shared_bytes: (L, T) saved besides, but one tensor for all layers of a stage (masks).
        in_bytes: (L,) crosses the cut in front of the layer.
        out_bytes: (L,) crosses the cut behind it; last: 0.
        saved_in_bytes: (L,) of `in_bytes`, what the layer saves itself.
        saved_out_bytes: (L,) of `out_bytes`, what the layer saves itself.
        workspace_bytes: (L, T) what a pass needs besides; 0 where nobody has measured it.
        deferred_bytes: (L,) held between the two parts of a zero-bubble backward pass; NaN where
            the profile does not say it.
        packed_bytes: (L,) of `out_bytes`, what is copied into one message: all, where the cut is of
            several tensors.
        passing: Of each tensor that crosses several cuts: the first and the last of them (layers in
            front), and its bytes.
        input_bytes: Samples and targets of one full micro-batch, which every device gets.
        backward_peaks: What backward passes hold for a while.
    """

    own_bytes: Floats
    shared_bytes: Floats
    in_bytes: Floats
    out_bytes: Floats
    saved_in_bytes: Floats
    saved_out_bytes: Floats
    workspace_bytes: Floats
    deferred_bytes: Floats
    packed_bytes: Floats
    passing: Floats
    input_bytes: float
    backward_peaks: BackwardPeaks

    def chain_bytes(self) -> Floats:
        """(L, T) whose sum over a stage is what it keeps inside, or more: each cut counts once."""
        again = np.maximum(self.saved_in_bytes[1:] - self.saved_out_bytes[:-1], 0.0)
        cuts = self.saved_out_bytes + np.concatenate([[self.saved_in_bytes[0]], again])
        return np.asarray(self.own_bytes + self.shared_bytes + cuts[:, None])

    def end_bytes(self) -> tuple[Floats, Floats]:
        """(L,), (L,) what a stage keeps beyond `chain_bytes` where it begins or ends there."""
        again = np.maximum(self.saved_in_bytes[1:] - self.saved_out_bytes[:-1], 0.0)
        counted = np.concatenate([[self.saved_in_bytes[0]], again])
        return self.in_bytes - counted, self.out_bytes - self.saved_out_bytes

    def computed_again(self) -> LayerMemory:
        """The same where all layers drop what they keep: of each only what enters it stays."""
        nothing = np.zeros_like(self.saved_out_bytes)
        return replace(
            self,
            own_bytes=np.zeros_like(self.own_bytes),
            saved_in_bytes=self.in_bytes,
            saved_out_bytes=nothing,
        )

    def offloaded(self) -> LayerMemory:
        """The same where the host keeps what all layers save."""
        return replace(
            self,
            own_bytes=np.zeros_like(self.own_bytes),
            saved_in_bytes=np.zeros_like(self.saved_in_bytes),
            saved_out_bytes=np.zeros_like(self.saved_out_bytes),
        )

    def put_off(self) -> LayerMemory:
        """The same with at least what waits for the second part of a zero-bubble backward pass."""
        at_cuts = self.chain_bytes() - self.own_bytes - self.shared_bytes
        waits = np.nan_to_num(self.deferred_bytes)[:, None]
        return replace(self, own_bytes=np.maximum(self.own_bytes, waits - at_cuts))

    @property
    def turn_bytes(self) -> Floats:
        """(L, T) most that the first part of a zero-bubble backward pass of a layer adds."""
        measured = self.backward_peaks.later_input
        turn = np.where(np.isnan(measured), self.deferred_bytes[:, None], measured)
        return np.asarray(np.nan_to_num(turn))

    def kept_bytes(
        self,
        first: int,
        last: int,
        kind: int,
        recomputed: Collection[int] = (),
        offloaded: Collection[int] = (),
    ) -> float:
        """Bytes that a stage keeps of one full micro-batch.

        Args:
            first: Its first layer.
            last: Its last layer (inclusive).
            kind: Index of its device class.
            recomputed: Layers of it that are computed again.
            offloaded: Layers of it that keep what they save in host memory.
        """
        own, front, back = self._parts(first, last, kind, recomputed, offloaded)
        shared = float(self.shared_bytes[first : last + 1, kind].max())
        inner = float(own.sum()) + float(np.maximum(front, back).sum()) + shared
        # What passes the stage by is received and sent on, in one piece of memory.
        begin, end, num_bytes = self.passing
        passed = num_bytes[(begin < first) & (end >= last)].sum()
        return inner + float(self.in_bytes[first] + self.out_bytes[last] - passed)

    def kept_bytes_of(self, starts: Integers) -> Floats:
        """(S, T) the same of stages that follow one another, over all layers.

        Args:
            starts: (S,) the first layer of each, from 0.
        """
        ends = np.append(starts[1:], len(self.in_bytes)) - 1
        cuts = self.in_bytes * 0.0
        cuts[1:] = np.maximum(self.saved_out_bytes[:-1], self.saved_in_bytes[1:])
        cuts[starts] = 0.0
        begin, end, num_bytes = self.passing
        passed = (begin < starts[:, None]) & (end >= ends[:, None])
        at_ends = self.in_bytes[starts] + self.out_bytes[ends] - passed @ num_bytes
        inner = np.add.reduceat(self.own_bytes + cuts[:, None], starts)
        shared = np.maximum.reduceat(self.shared_bytes, starts)
        return np.asarray(inner + shared + at_ends[:, None])

    def freed_bytes(
        self,
        first: int,
        last: int,
        kind: int,
        recomputed: Collection[int] = (),
        offloaded: Collection[int] = (),
    ) -> Floats:
        """(n + 1,) bytes that are free again when 0 .. n layers of a stage are done, back first.

        What crosses the stage's own ends stays until the backward pass is over.
        """
        own, front, back = self._parts(first, last, kind, recomputed, offloaded)
        freed = own.copy()
        freed[1:] += np.maximum(back - front, 0.0)
        freed[:-1] += front
        freed[0] += self.shared_bytes[first : last + 1, kind].max()
        return np.concatenate([[0.0], np.cumsum(freed[::-1])])

    def _parts(
        self,
        first: int,
        last: int,
        kind: int,
        recomputed: Collection[int],
        offloaded: Collection[int],
    ) -> tuple[Floats, Floats, Floats]:
        """What n layers keep: (n,) beside the cuts, (n - 1,) of each inner cut in front, behind."""
        again, gone = np.zeros((2, last + 1 - first), dtype=bool)
        again[[layer - first for layer in recomputed]] = True
        gone[[layer - first for layer in (*recomputed, *offloaded)]] = True
        part = slice(first, last + 1)
        own = np.where(gone, 0.0, self.own_bytes[part, kind])
        front = np.where(gone, 0.0, self.saved_out_bytes[part])[:-1]
        saved_in = np.where(gone, 0.0, self.saved_in_bytes[part])
        back = np.where(again, self.in_bytes[part], saved_in)[1:]
        return own, front, back
