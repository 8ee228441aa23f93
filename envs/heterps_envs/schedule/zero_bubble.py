"""Zero-bubble (ZB-H1): backward passes in two parts.

Source: Qi et al., Zero Bubble Pipeline Parallelism, 2024, section 2.

`backward-input` computes the gradients that the stage in front waits for, and they are sent at
once; `backward-weight` computes those of the parameters, for which nobody waits but the all-reduce
at the end, and then the activations are freed. A device chooses by the rule of 1F1B between forward
passes and `backward-input`; what is left of its time goes to `backward-weight`. Where no more
activations may be kept, `backward-weight` comes before the next forward pass.

Memory: as many micro-batches as 1F1B holds on each stage always suffice. ZB-H1 lets every stage
hold as many as 1F1B holds on the first one, so that more of `backward-weight` can wait for the end:
for S equal stages with F = B = W the bubble shrinks from `(S - 1) (F + B + W)` to
`(S - 1) (F + B - W)`. Devices do that as far as their own memory has room. What waits may be more
than was kept: layers that are computed again, or offloaded, put off as much as others.
"""

from __future__ import annotations

import numpy as np

from heterps_configs.documents.plan import Plan
from heterps_envs.arrays import Integers
from heterps_envs.problem import Problem
from heterps_envs.schedule.in_flight import as_memory_allows, in_flight_of_stages
from heterps_envs.schedule.plan_arrays import PlanArrays


def held_of_stages(problem: Problem, plan: Plan, arrays: PlanArrays) -> Integers:
    """(S,) for each stage, of how many micro-batches it keeps activations at most.

    That of `in_flight_micro_batches`, and for zero-bubble what memory has room for beyond it, as
    planners count memory, up to the number of the first stage of its route. Stages of one device
    share its room evenly.
    """
    shape = arrays.shape
    held = in_flight_of_stages(plan, shape)
    if plan.job.schedule != "zero-bubble":
        return held
    wanted = np.append(held, 0)  # the last one is no stage
    np.maximum.at(wanted, shape.routes, held[shape.routes[:, :1]])
    return as_memory_allows(problem, plan, arrays, held, wanted[:-1])
