"""Memory timeline: what every device holds before, during and after each of its actions.

The bytes follow from the action lists alone, not from their seconds, because the runtime takes and
frees memory at its own actions:

- Parameters and optimizer state: always. Parameters that layers of one device share count once.
- Gradients: of a stage from its first backward pass on, layer by layer from the back, while that
  pass frees activations; until the optimizer step drops them all.
- Activations: what a stage keeps of a micro-batch (`heterps_envs.layer_costs.memory`), from its
forward
  to its backward pass; in a zero-bubble schedule what linear layers and convolutions read, and the
  gradients of what they returned, until `backward-weight`. Stages of one device that follow each
  other share the tensor between them.
- Buffers: the samples of all micro-batches that the device computes; `posted_ahead` receives; what
  was received until its pass; gradients that were sent until a message comes back that the peer
  sent after receiving them; the copy that an all-reduce starts with, of which the gradients
  themselves then become parts; and the workspace of the running pass.

Sent activations are the stage's outputs, which it keeps anyway; where a cut carries several
tensors, they are copied into one message, which stays as long as a sent gradient does. What passes
a stage by counts once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from heterps_envs.arrays import Floats, Integers
from heterps_envs.schedule.actions import (
    BACKWARD,
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    GATHER,
    SEND_BACKWARD,
    SEND_FORWARD,
    STEP,
    Schedule,
)
from heterps_envs.simulator.messages import confirmed_at
from heterps_envs.simulator.prepared import PreparedPlan
from heterps_envs.simulator.reduce_copies import reduce_copies
from heterps_envs.simulator.stage_memory import StageBytes, stage_bytes

GRADIENT, ACTIVATION, BUFFER = 0, 1, 2
# Of a micro-batch the loss, one float32, stays until the step is over, where the model can be run.
LOSS_BYTES = 4


@dataclass(frozen=True, eq=False)
class MemoryTimeline:
    """A actions of D devices, in the order of the schedule's arrays.

    Of a tensor-parallel group, what one of its devices holds.

    Attributes:
        parameter_bytes, optimizer_bytes: (D,) always held.
        before: (D, 3) gradients, activations and buffers when the step begins.
        during: (A, 3) the same at the worst moment of each action.
        after: (A, 3) the same when it is over.
    """

    schedule: Schedule
    parameter_bytes: Floats
    optimizer_bytes: Floats
    before: Floats
    during: Floats
    after: Floats

    @cached_property
    def peak_bytes(self) -> Floats:
        """(D,) the most that each device holds."""
        worst = np.maximum(self.during.sum(axis=1), self.after.sum(axis=1))
        most = self.before.sum(axis=1)
        filled = np.flatnonzero(np.diff(self.schedule.offsets))
        most[filled] = np.maximum(
            most[filled], np.maximum.reduceat(worst, self.schedule.offsets[filled])
        )
        return np.asarray(self.parameter_bytes + self.optimizer_bytes + most)


def memory_timeline(prepared: PreparedPlan, rank: int | None = None) -> MemoryTimeline:
    """What every device of a plan holds, action by action.

    Args:
        prepared: The plan.
        rank: Of tensor-parallel groups, which device; by default one with the largest share.

    Raises:
        PlanMismatchError: The plan belongs to another model, cluster or job.
    """
    return _Builder(prepared, rank).build()


class _Builder:
    """Sums up what each action takes and frees."""

    def __init__(self, prepared: PreparedPlan, rank: int | None) -> None:
        self.problem, self.plan, self.messages = prepared.problem, prepared.plan, prepared.messages
        self.rank = rank
        schedule, arrays = prepared.schedule, prepared.arrays
        self.schedule, self.arrays = schedule, arrays
        self.first_gradient = _first(schedule, BACKWARD, BACKWARD_WEIGHT)
        first_share = np.where(
            self.first_gradient < 0, 1.0, arrays.share[schedule.micro_batch[self.first_gradient]]
        )
        self.bytes: StageBytes = stage_bytes(prepared, self.first_gradient, first_share, rank)
        self.change = np.zeros((len(schedule.kind), 3))
        self.extra = np.zeros((len(schedule.kind), 3))
        self.before = np.zeros((len(schedule.devices), 3))

    def build(self) -> MemoryTimeline:
        """Goes through the kinds of actions, all actions of a kind at once."""
        self.before[:, BUFFER] += self._sample_bytes()
        self._passes()
        self._receives()
        self._sends()
        self._reduces()
        after = self._levels()
        previous = np.empty_like(after)
        previous[1:] = after[:-1]
        starts = self.schedule.offsets[:-1][np.diff(self.schedule.offsets) > 0]
        previous[starts] = self.before[self.schedule.device_of[starts]]
        return MemoryTimeline(
            self.schedule,
            self.bytes.parameter_bytes,
            self.bytes.optimizer_bytes,
            self.before,
            previous + self.extra,
            after,
        )

    def _levels(self) -> Floats:
        """(A, 3) sums of the changes of each device; a step leaves no gradient."""
        offsets, device_of = self.schedule.offsets, self.schedule.device_of
        total = np.cumsum(self.change, axis=0)
        padded = np.concatenate([np.zeros((1, 3)), total])
        after = total - padded[offsets[:-1]][device_of] + self.before[device_of]
        # Sums of large numbers leave rests where there is nothing.
        return np.where(np.abs(after) < 1e-3, 0.0, after)

    def _sample_bytes(self) -> Floats:
        """(D,) samples and targets of the micro-batches that each device computes."""
        schedule, share = self.schedule, self.arrays.share
        forwards = np.flatnonzero(schedule.kind == FORWARD)
        found = np.unique(
            schedule.device_of[forwards] * len(share) + schedule.micro_batch[forwards]
        )
        samples = share[found % len(share)] * self.problem.layer_memory.input_bytes
        return np.bincount(found // len(share), samples, len(schedule.devices)).astype(float)

    def _of(self, *kinds: int) -> _Some:
        """The actions of some kinds."""
        index = _indices(self.schedule, kinds)
        stage, micro_batch = self.schedule.stage[index], self.schedule.micro_batch[index]
        arrays = self.arrays
        route, share = arrays.pipeline_of[micro_batch], arrays.share[micro_batch]
        front, behind = arrays.front[route, stage], arrays.behind[route, stage]
        device = arrays.stage_device
        return _Some(
            index,
            stage,
            share,
            np.where(front >= 0, arrays.output_bytes[front], 0.0) * share,
            np.where(behind >= 0, arrays.output_bytes[stage], 0.0) * share,
            (front >= 0) & (device[front] == device[stage]),
            behind,
        )

    def _passes(self) -> None:
        held, change, extra = self.bytes, self.change, self.extra
        some = self._of(FORWARD)
        kept = held.kept_bytes[some.stage] * some.share - some.in_bytes * some.front_is_here
        change[some.index, BUFFER] -= some.in_bytes * ~some.front_is_here
        has_loss = (some.behind < 0) & (self.problem.profile.source is not None)
        change[some.index, ACTIVATION] += kept + LOSS_BYTES * has_loss
        extra[some.index] = change[some.index]
        extra[some.index, BUFFER] += held.workspace_bytes[some.stage] * some.share

        some = self._of(BACKWARD, BACKWARD_INPUT)
        whole = self.schedule.kind[some.index] == BACKWARD
        kept = held.kept_bytes[some.stage] * some.share - some.in_bytes * some.front_is_here
        later = held.later_bytes[some.stage] * some.share
        change[some.index, BUFFER] += some.in_bytes - some.out_bytes
        change[some.index, ACTIVATION] -= np.where(whole, kept, kept - later)
        beyond = np.where(whole, held.again_bytes[some.stage], held.turn_bytes[some.stage])
        extra[some.index, ACTIVATION] += beyond * some.share
        extra[some.index, BUFFER] += held.workspace_bytes[some.stage] * some.share

        some = self._of(BACKWARD_WEIGHT)
        change[some.index, ACTIVATION] -= held.later_bytes[some.stage] * some.share

        stages = np.flatnonzero(self.first_gradient >= 0)
        first = self.first_gradient[stages]
        change[first, GRADIENT] += held.gradient_bytes[stages]
        extra[first, GRADIENT] = held.first_pass[stages, 0]
        extra[first, ACTIVATION] = held.first_pass[stages, 1]
        is_split = self.schedule.kind[first] == BACKWARD_WEIGHT
        first, stages = first[is_split], stages[is_split]
        change[first, GRADIENT] -= held.early_bytes[stages]
        extra[first, GRADIENT] = held.first_weight[stages, 0]
        extra[first, ACTIVATION] = held.first_weight[stages, 1]
        first = _first(self.schedule, BACKWARD_INPUT)[stages]
        change[first, GRADIENT] += held.early_bytes[stages]
        extra[first, GRADIENT] = held.first_input[stages, 0]
        extra[first, ACTIVATION] = held.first_input[stages, 1]

    def _receives(self) -> None:
        """Each receive asks for the one `posted_ahead` places after it."""
        receives, num_bytes = self.messages.receives, self.messages.received_bytes
        ahead = self.messages.posted_ahead
        device = self.schedule.device_of[receives]
        begins = np.searchsorted(device, np.arange(len(self.before)))
        place = np.arange(len(device)) - begins[device]
        early = place < ahead[device]
        self.before[:, BUFFER] += np.bincount(device[early], num_bytes[early], len(self.before))
        late = np.flatnonzero(~early)
        self.change[receives[late - ahead[device[late]]], BUFFER] += num_bytes[late]

    def _sends(self) -> None:
        """What was sent stays until the peer is known to have received it.

        Activations are kept anyway; of several tensors, a copy is sent.
        """
        freed_at = confirmed_at(self.schedule, self.messages)
        some = self._of(SEND_FORWARD)
        copies = np.where(self._is_packed(some.behind), some.out_bytes, 0.0)
        self.change[some.index, BUFFER] += copies
        self.extra[some.index, BUFFER] += copies
        self._free(freed_at[some.index], copies)
        some = self._of(SEND_BACKWARD)
        self.extra[some.index, BUFFER] += np.where(self._is_packed(some.stage), some.in_bytes, 0.0)
        self._free(freed_at[some.index], some.in_bytes)

    def _is_packed(self, stage: NDArray[np.int32] | Integers) -> NDArray[np.bool_]:
        """(N,) whether several tensors cross the cut in front of each stage."""
        first = np.array([each.first_layer for each in self.plan.stages])[stage]
        return np.asarray(self.problem.layer_memory.packed_bytes[first - 1] > 0)

    def _free(self, at: Integers, num_bytes: Floats) -> None:
        self.change[:, BUFFER] -= np.bincount(at, num_bytes, len(self.change))

    def _reduces(self) -> None:
        schedule = self.schedule
        steps = np.flatnonzero(schedule.kind == STEP)
        for copy in reduce_copies(self.problem, self.plan, schedule, self.rank):
            at, stage = copy.action, schedule.stage[copy.action]
            if not copy.layers_done:
                self.extra[at, BUFFER] = copy.num_bytes
                continue
            # Is it there at the pass's worst moment, or is another one now the worst?
            share = self.arrays.share[schedule.micro_batch[at]]
            is_first = at == self.first_gradient[stage]
            moment = np.array(
                [
                    self.bytes.come_bytes[stage][copy.layers_done] if is_first else 0.0,
                    -share * self.bytes.gone_bytes[stage][copy.layers_done],
                    copy.num_bytes + share * self.bytes.workspace_bytes[stage],
                ]
            )
            if moment.sum() > self.extra[at].sum():
                self.extra[at] = moment
        # The optimizer step drops all gradients.
        held = np.bincount(schedule.device_of, self.change[:, GRADIENT], minlength=len(self.before))
        self.change[steps, GRADIENT] -= held[schedule.device_of[steps]]


@dataclass(frozen=True, eq=False)
class _Some:
    """N actions of some kinds.

    Attributes:
        index: (N,) in the schedule's arrays.
        stage: (N,)
        share: (N,) of a full micro-batch.
        in_bytes: (N,) over the cut in front of the stage; 0 for the first.
        out_bytes: (N,) over the cut behind it; 0 for the last.
        front_is_here: (N,) the stage in front is on the same device.
        behind: (N,) the stage behind; -1 for none.
    """

    index: Integers
    stage: NDArray[np.int32]
    share: Floats
    in_bytes: Floats
    out_bytes: Floats
    front_is_here: NDArray[np.bool_]
    behind: Integers


def _first(schedule: Schedule, *kinds: int) -> Integers:
    """(S,) the first action of some kinds of each stage; -1: there is none."""
    index = _indices(schedule, kinds)[::-1]
    first = np.full(len(schedule.stages), -1, np.int64)
    first[schedule.stage[index]] = index
    return first


def _indices(schedule: Schedule, kinds: tuple[int, ...]) -> Integers:
    """The actions of some kinds, in the order of the lists."""
    is_wanted = np.zeros(GATHER + 1, bool)
    is_wanted[list(kinds)] = True
    return np.flatnonzero(is_wanted[schedule.kind])
