"""HARP's cost of a pipeline, and the micro-batches that a stage launches before its first backward.

A step takes as long as one micro-batch through all stages and over all links, and one period more
for each further micro-batch: `(B - 1) max_s comp_s + sum_s comp_s + sum_s comm_s`. Messages count
once because a stage launches so many micro-batches that it works while they are under way.
"""

from __future__ import annotations

import math

from heterps_envs.compiled import checked

# Of a whole number, what rounding may add.
_ROUNDING = 1e-9


def step_s(period_s: float, fill_s: float, num_micro_batches: int) -> float:
    """Seconds of a step.

    Args:
        period_s: From one micro-batch to the next: of the slowest stage, or longer.
        fill_s: Of one micro-batch through all stages, forward and backward, and over all links,
            there and back.
        num_micro_batches: B.
    """
    return (num_micro_batches - 1) * period_s + fill_s


@checked
def launch_count(behind_s: float, period_s: float, replicas: int) -> int:
    """Micro-batches in flight on each replica of a stage so that it never waits.

    One that it works on, and as many as it begins until the first comes back. Without seconds of
    messages and with equal stages this is what 1F1B has.

    Args:
        behind_s: From the end of a forward pass to the begin of its backward pass: messages and
            stages behind, there and back.
        period_s: From one micro-batch to the next.
        replicas: That take micro-batches in turns.
    """
    return 1 + math.ceil(behind_s / (replicas * period_s) - _ROUNDING)
