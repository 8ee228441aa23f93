"""How many micro-batches a stage can do, if it is known what is in front of it and behind it.

The inequalities are those of `shares`, with the ways of this set of stages and the owners that each
layer has in it.
"""

from __future__ import annotations

import math
from typing import Any

from heterps_envs.compiled import uncounted_helper
from heterps_envs.step_bounds.shares import (
    ALONE,
    AMONG,
    ROUNDING,
    quotient,
    whole,
)
from heterps_envs.step_bounds.whole_plans.again import micro_batches_with
from heterps_envs.step_bounds.whole_plans.replicas import replicas_after_s
from heterps_envs.step_bounds.whole_plans.tied import tied_bytes


@uncounted_helper
def hoped_for(n: Any, staged: Any, step_s: float, stage: int, share: float) -> float:
    """The most, whatever is behind the stage; `staged` has the way to it.

    Args:
        n: `Needs`.
        staged: `Staged`.
        step_s: T.
        stage: Which.
        share: That a group can have of these layers, wherever it stands.
    """
    option, _, stop = staged.spans[stage]
    after = max(staged.optimizer_s[stage], staged.out_s[stage])
    left = step_s * (1 + ROUNDING) - staged.in_s[stage] - after
    seconds = left, n.around_s[0, stop, option]
    most = _in_memory(n, staged, stage, seconds, n.sums.parts)
    return float(min(most, share * n.total * (1 + ROUNDING)))


@uncounted_helper
def can_do(n: Any, staged: Any, step_s: float, stage: int, turns: Any) -> float:
    """The most, beside exactly these stages.

    Args:
        n: `Needs`.
        staged: `Staged`.
        step_s: T.
        stage: Which.
        turns: Of its first micro-batch, and of its last one from the back: columns of
            `Staged.in_at` and `Staged.out_at`.
    """
    option, first, stop = staged.spans[stage]
    optimizer = staged.optimizer_s[stage]
    left = step_s * (1 + ROUNDING)
    if turns[0] + turns[1] == 0:
        left -= staged.in_s[stage]
        after = max(optimizer, staged.out_s[stage])
    else:
        left -= staged.in_at[stage, turns[0]]
        after = max(optimizer, staged.out_at[stage, turns[1]])
    seconds = left - after, staged.around_s[stage]
    most = _in_memory(n, staged, stage, seconds, 0)
    forward = n.forward_s[stop, option] - n.forward_s[first, option]
    backward = n.backward_s[stop, option] - n.backward_s[first, option]
    share = quotient(left - after - staged.last_s[stage], forward + backward)
    share = min(share, quotient(left - staged.tail_s[stage], forward))
    returned = step_s * (1 + ROUNDING) - staged.return_s[stage]
    share = min(share, quotient(returned - after, backward))
    most = min(most, whole(n, share))
    return max(0.0, min(most, _before_sums(n, staged, (left, returned), stage)))


@uncounted_helper
def _in_memory(n: Any, staged: Any, stage: int, seconds: Any, parts: int) -> float:
    """Micro-batches beside its state and copies of tied parameters, see `tied.tied_bytes`."""
    option, first, stop = span = staged.spans[stage]
    more, gradients = tied_bytes(staged.tied, span, staged.owners, parts)
    gradients += n.gradient_bytes[stop, option] - n.gradient_bytes[first, option]
    room = n.room_bytes[option] * (1 + ROUNDING) - staged.state_bytes[stage] - more
    return float(micro_batches_with(n, staged.again, span, seconds, room, gradients))


@uncounted_helper
def find_state(n: Any, staged: Any, stage: int) -> None:
    """Writes its least seconds of the optimizer step and bytes of state, whoever has layers."""
    option, first, stop = staged.spans[stage]
    optimizer = n.optimizer_s[AMONG, stop, option] - n.optimizer_s[AMONG, first, option]
    staged.optimizer_s[stage] = optimizer
    state = n.state_bytes[AMONG, stop, option] - n.state_bytes[AMONG, first, option]
    staged.state_bytes[stage] = state


@uncounted_helper
def find_own_state(n: Any, staged: Any, stage: int) -> None:
    """The same beside exactly these owners of layers, each of whom may have a part."""
    option, first, stop = staged.spans[stage]
    parts = n.sums.parts
    optimizer, state = 0.0, 0.0
    for layer in range(first, stop):
        owners = min(staged.owners[layer], parts) if staged.degree[layer] > 0 else 1
        # What is divided is known from what is left where it is in most parts.
        divided = 0.0 if parts == 1 else (1 - 1 / owners) / (1 - 1 / parts)
        for_one = n.optimizer_s[ALONE, layer + 1, option] - n.optimizer_s[ALONE, layer, option]
        for_all = n.optimizer_s[AMONG, layer + 1, option] - n.optimizer_s[AMONG, layer, option]
        optimizer += for_one - divided * (for_one - for_all)
        for_one = n.state_bytes[ALONE, layer + 1, option] - n.state_bytes[ALONE, layer, option]
        for_all = n.state_bytes[AMONG, layer + 1, option] - n.state_bytes[AMONG, layer, option]
        state += for_one - divided * (for_one - for_all)
    staged.optimizer_s[stage], staged.state_bytes[stage] = optimizer, state


@uncounted_helper
def _before_sums(n: Any, staged: Any, lefts: Any, stage: int) -> float:
    """The most before sums of gradients.

    Args:
        n: `Needs`.
        staged: `Staged`.
        lefts: Seconds after the way in, and after the first backward pass can begin.
        stage: Which.
    """
    option, first, stop = staged.spans[stage]
    forward = n.forward_s[stop, option] - n.forward_s[first, option]
    backward = n.backward_s[stop, option] - n.backward_s[first, option]
    after = staged.after_s[stage]
    # The last backward pass begins when all others are over, and its own can be there. It counts as
    # one of a full micro-batch: of a smaller one it takes less, and those before it as much more.
    left, returned = lefts[0] - after, lefts[1] - after
    share = quotient(left + backward - staged.last_s[stage], forward + backward)
    begun = min(returned, left - n.unit * forward - staged.around_s[stage])
    beside = quotient(begun + backward, backward)
    return float(whole(n, min(share, beside)))


@uncounted_helper
def find_after(n: Any, staged: Any, stage: int, count: int) -> None:
    """Writes the least seconds from the begin of its last backward pass to the end of the step.

    Args:
        n: `Needs`.
        staged: `Staged`, whose owners are known.
        stage: Which.
        count: Stages.
    """
    known_s = replicas_after_s(staged.known, staged.spans, count, stage)
    staged.after_s[stage] = max(_sums_s(n, staged, stage), known_s)


@uncounted_helper
def _sums_s(n: Any, staged: Any, stage: int) -> float:
    """Least seconds after the last backward pass begins, each layer with its own owners."""
    option, first, stop = staged.spans[stage]
    sum_s, rest_s, kind = n.sums.own_sum_s, n.sums.own_rest_s, n.class_of[option]
    rest, summed, most_after = 0.0, 0.0, -math.inf
    most_owners = n.sums.wait_s.shape[1] - 1
    for layer in range(first, stop):
        far, owners = staged.is_far[layer], min(staged.owners[layer], most_owners)
        rest += rest_s[far, owners, layer + 1, option] - rest_s[far, owners, layer, option]
    for layer in range(first, stop):
        far, owners = staged.is_far[layer], min(staged.owners[layer], most_owners)
        rest -= rest_s[far, owners, layer + 1, option] - rest_s[far, owners, layer, option]
        summed += sum_s[far, owners, layer + 1, option] - sum_s[far, owners, layer, option]
        if not n.overlaps and layer < stop - 1:
            continue
        passed = layer if n.overlaps else first
        after = n.backward_s[stop, option] - n.backward_s[passed, option] + summed + rest
        if n.gradient_bytes[layer + 1, option] > n.gradient_bytes[layer, option]:
            after += n.sums.wait_s[far, owners, kind]
        most_after = max(most_after, after)
    return float(most_after)
