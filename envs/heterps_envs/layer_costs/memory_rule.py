"""The memory rule of planners: linear in the layers, and never below what a plan really takes.

A stage of layers a .. b that holds h micro-batches fits a device if

    sum over a..b of state[l] + h sum over a..b of activation[l] <= memory - reserve

`state` are weights, gradients and optimizer state, all at once. Under GPipe that is more than there
ever is: the first backward pass gives back a layer's activations as it makes the layer's gradients.
There `apart` holds what each layer counts only once of the two, the smaller one; `reserve` holds
that of one layer, which is under way. Under 1F1B forward passes follow the first backward pass.

What a stage keeps is not linear: a
tensor that crosses a cut counts once inside a stage, but at the ends of a stage it counts whether
a layer saves it or not. There are two ways to stay above that, and the rule takes the one that
wastes less memory of the cluster:

- Every layer counts the tensors of both its cuts: right for stages of one layer, too much for long
  ones. It suits stages that hold many micro-batches.
- `reserve` holds the largest tensors that enter and leave a stage, for as many micro-batches as any
  stage can hold. It suits long stages.

`reserve` holds besides: the samples of a step, messages of the largest size (receives posted ahead,
and gradients on their way to as many replicas in front as the cluster allows), and the largest
workspace of a layer.

Two things are left out. The copies of a gradient all-reduce, at most `REDUCE_COPY_BYTES`: they come
late in a stage's last backward pass or after it, so they count only where the small gradients of a
stage with replicas take more than the activations that are gone by then. To reserve them would take
as much from every plan without replicas. And gradients on their way to more than `MOST_PEERS`
replicas in front. The estimate counts both, and says so where a plan does not fit for them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_configs.documents.job import Job
from heterps_envs.arrays import Floats
from heterps_envs.layer_costs.kept_memory import LayerMemory

# Receives that a device asks for ahead of the one that it waits for: as many as take so many bytes,
# within these bounds. A message leaves when its receiver has asked for it, so no more of them are
# under way: as many bytes as a link of 1 GB/s carries in 32 ms, which is there and back over 5,000
# km. But large messages take memory.
POSTED_BYTES = 2**25
FEWEST_POSTED, MOST_POSTED = 4, 128
# Copies of gradients that an all-reduce holds at most. Large enough that two halves of it, one
# after the other on their way, hide the latency of a usual network (1 ms at 2 GB/s).
REDUCE_COPY_BYTES = 4 * 2**20
# A gradient of as many bytes is no part of a copy: one more all-reduce costs less than copying it.
LARGE_GRADIENT_BYTES = REDUCE_COPY_BYTES // 2
# Devices in front of a stage that gradients are on their way to; to each, two at a time.
MOST_PEERS = 16


class MemoryRule(NamedTuple):
    """What planners count.

    Attributes:
        activation_bytes: (L,) kept for one micro-batch, on the class where it is most.
        reserve_bytes: (T,) that a stage on a device of each class leaves free.
        apart_bytes: (L,) of the state, what is never there beside all activations.
        message_bytes: (T,) of the reserve, what samples and messages take.
    """

    activation_bytes: Floats
    reserve_bytes: Floats
    apart_bytes: Floats
    message_bytes: Floats


def memory_rule(
    memory: LayerMemory, gradient_bytes: Floats, job: Job, device_count: NDArray[np.int64]
) -> MemoryRule:
    """The rule for one problem.

    Args:
        memory: What layers keep.
        gradient_bytes: (L,) of the layers' gradients.
        job: Its micro-batches.
        device_count: (T,) devices of each class.
    """
    if job.schedule == "zero-bubble":
        rule = _all_at_once(memory.put_off(), job, device_count)
        return rule._replace(reserve_bytes=rule.reserve_bytes + memory.turn_bytes.max(axis=0))
    rule = _all_at_once(memory, job, device_count)
    if job.schedule != "gpipe":
        return rule
    apart = np.minimum(gradient_bytes, rule.activation_bytes)
    under_way = apart.max() + memory.shared_bytes.max(axis=0)
    return rule._replace(apart_bytes=apart, reserve_bytes=rule.reserve_bytes + under_way)


def _all_at_once(memory: LayerMemory, job: Job, device_count: NDArray[np.int64]) -> MemoryRule:
    num_micro_batches, num_devices = job.num_micro_batches, int(device_count.sum())
    inside = memory.chain_bytes().max(axis=1)
    nothing = np.zeros(len(inside))
    at_front, at_back = memory.end_bytes()
    at_back = at_back + memory.packed_bytes  # copies that wait until they have arrived
    held = num_micro_batches
    if job.schedule != "gpipe":
        held = min(held, 2 * num_devices if job.schedule == "interleaved" else num_devices)
    workspace = memory.workspace_bytes.max(axis=0)
    messages = np.full(len(workspace), memory.input_bytes * num_micro_batches)
    if num_devices == 1:
        return MemoryRule(inside, messages + workspace, nothing, messages)
    largest = float(memory.out_bytes.max())
    # A device whose own messages are smaller posts more of them, but not more bytes.
    posted = max(FEWEST_POSTED * largest, min(MOST_POSTED * largest, POSTED_BYTES))
    if job.schedule != "interleaved":  # each micro-batch comes once, and once its gradient
        posted = min(posted, 2 * num_micro_batches * largest)
    num_messages = 2 + 2 * np.minimum(_most_peers(device_count), MOST_PEERS)
    messages = messages + posted + num_messages * largest
    at_ends = held * (at_front.max() + at_back.max())
    # On average a stage holds half as many micro-batches as the first one; each stage has its ends
    # once, but counts those of all its layers.
    usual = held if job.schedule == "gpipe" else (held + 1) / 2
    if usual * (at_front + at_back).sum() < num_devices * at_ends:
        return MemoryRule(inside + at_front + at_back, messages + workspace, nothing, messages)
    return MemoryRule(inside, messages + workspace + at_ends, nothing, messages)


def posted_ahead(largest_bytes: Floats | np.float64) -> NDArray[np.int64]:
    """Receives that devices ask for ahead of the one that they wait for.

    Args:
        largest_bytes: (D,) or a number, of the largest message that each receives.
    """
    fitting = POSTED_BYTES // np.maximum(largest_bytes, 1.0)
    return np.asarray(np.clip(fitting, FEWEST_POSTED, MOST_POSTED), np.int64)


def _most_peers(device_count: NDArray[np.int64]) -> NDArray[np.int64]:
    """(T,) the most replicas that another stage can have, beside a device of each class."""
    beside = device_count - np.eye(len(device_count), dtype=np.int64)
    return np.asarray(beside.max(axis=1))
