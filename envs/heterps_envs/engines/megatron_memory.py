"""Memory of a GPU in a run of Megatron-DeepSpeed, as `nvidia-smi` shows it.

The published runs log what `nvidia-smi` says is used, after every instruction, and keep the last
value of each rank; the largest rank is reported. PyTorch's allocator gives nothing back, so that is
the peak, and it holds the CUDA context and everything that libraries load.

On each GPU of a tensor-parallel group:

* State, 16 bytes a parameter: the runs are in float32 without ZeRO, so weight, gradient and the two
  moments of Adam, and no master copy. The flat copy of the gradients that an all-reduce makes comes
  after the last backward pass and takes the memory of activations that are free again.
* Saved activations of the profile, for each micro-batch in flight: stages behind plus one.
* Two score matrices of attention (heads / degree x sequence x sequence, float32): what `baddbmm`
  reads and writes in the forward pass, or the gradients of scores and probabilities in the
  backward pass. Both live only inside a layer, on top of all saved activations.
* The runtime: 0.3 GB of context, and the kernels. A kernel that spills reserves local memory for
  every thread that the GPU can hold, so it grows with multiprocessors times threads. Sailor's
  simulator has 4.76 GB + 0.3 GB on GH200 and says that it depends on GPU and platform.
"""

from __future__ import annotations

import math
from typing import Literal

from heterps_configs.importers.sailor import SailorModel
from heterps_configs.importers.sailor_gpus import sailor_gpu
from heterps_configs.importers.sailor_runs import SailorPlan, SailorTraining

FLOAT_BYTES = 4
STATE_BYTES_PER_PARAMETER = 16
SCORE_MATRICES = 2
CONTEXT_BYTES = 0.3e9
# Of Sailor's simulator, which was made on GH200.
KERNEL_BYTES_ON_GH200 = 4.76e9
# `peak`: what is used at most. `state`: what is left after a step once the allocator has given back
# what it no longer needs.
Reading = Literal["peak", "state"]


def predicted_memory_bytes(
    model: SailorModel,
    plan: SailorPlan,
    training: SailorTraining,
    reading: Reading = "peak",
) -> float:
    """Bytes of the fullest GPU.

    Raises:
        HeterpsError: There are no layer sizes for a degree, or no figures of a GPU.
    """
    scores = training.num_heads * training.sequence_length**2
    return max(
        _stage_bytes(model, plan, index, degree, scores, reading) + runtime_bytes(gpu)
        for index, stage in enumerate(plan.stages)
        for gpu, degree in {(group.gpu, group.tensor_parallel) for group in stage.groups}
    )


def runtime_bytes(gpu: str) -> float:
    """Bytes of the CUDA context and of the kernels' local memory on a GPU.

    Raises:
        UnknownNameError: There are no figures of that GPU.
    """
    threads = sailor_gpu(gpu).resident_threads / sailor_gpu("GH-96").resident_threads
    return CONTEXT_BYTES + KERNEL_BYTES_ON_GH200 * threads


def _stage_bytes(
    model: SailorModel, plan: SailorPlan, index: int, degree: int, scores: int, reading: Reading
) -> float:
    stage = plan.stages[index]
    layers = model.layer_sizes(degree)[stage.first_layer : stage.end_layer]
    state = STATE_BYTES_PER_PARAMETER * sum(layer.parameters for layer in layers)
    if reading == "state":
        return state
    micro_batches = math.ceil(
        plan.global_batch_size / plan.micro_batch_size / len(plan.stages[0].groups)
    )
    in_flight = min(len(plan.stages) - index, micro_batches)
    saved = in_flight * sum(layer.activation_memory for layer in layers)
    workspace = SCORE_MATRICES * scores / degree
    return state + FLOAT_BYTES * plan.micro_batch_size * (saved + workspace)
