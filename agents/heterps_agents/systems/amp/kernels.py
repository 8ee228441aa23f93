"""The sweep behind AMP's layer split, compiled."""

from __future__ import annotations

import math

from heterps_envs.arrays import Floats, Integers
from heterps_envs.compiled import uncounted


@uncounted
def least_messages_s(
    compute_s: Floats,
    gradient_bytes: Floats,
    message_bytes: Floats,
    ring_s_per_byte: Floats,
    link_s_per_byte: Floats,
    most: Floats,
    best_s: Floats,
    starts: Integers,
) -> float:
    """The least seconds of all messages where no stage takes more than it may; inf where none is.

    Args:
        compute_s: (L + 1,) sums of the layers in front of each cut.
        gradient_bytes: (L + 1,) the same of gradients.
        message_bytes: (L,) over the cut behind each layer, there and back.
        ring_s_per_byte: (S,) of each stage's all-reduce.
        link_s_per_byte: (S,) of the link in front of each stage; the first is not read.
        most: Seconds that a stage may compute, and that its all-reduce may take.
        best_s: (S, L + 1) room.
        starts: (S, L + 1) room; afterwards the first layer of each stage, by the layer behind it.
    """
    stages, layers = best_s.shape[0], best_s.shape[1] - 1
    for stop in range(layers + 1):
        for stage in range(stages):
            best_s[stage, stop] = math.inf
    for stage in range(stages):
        for stop in range(stage + 1, layers - stages + stage + 2):
            for start in range(stop - 1, stage - 1, -1):
                own_s = compute_s[stop] - compute_s[start]
                sum_s = ring_s_per_byte[stage] * (gradient_bytes[stop] - gradient_bytes[start])
                if own_s > most[0] or sum_s > most[1]:
                    break
                if stage == 0:
                    if start > 0:
                        continue
                    found_s = 0.0
                else:
                    message_s = link_s_per_byte[stage] * message_bytes[start - 1]
                    found_s = best_s[stage - 1, start] + message_s
                if found_s < best_s[stage, stop]:
                    best_s[stage, stop] = found_s
                    starts[stage, stop] = start
    least_s: float = best_s[stages - 1, layers]
    return least_s
