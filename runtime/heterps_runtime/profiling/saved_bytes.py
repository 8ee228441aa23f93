"""What the layers of a stage really keep from the forward to the backward pass, in bytes.

Counted are the storages that autograd keeps, each once for a layer, without parameters, buffers and
the model's own inputs (the batch holds those during the whole step), and without the copies of
parameters that autocast makes (a step shares those). What a layer reads and what it
returns is included where the layer itself keeps it: a tensor between two layers may count for both,
and `heterps_envs.layer_costs.memory` counts it once in a stage. What glue computes for all layers
alike (masks, rotary tables) is told apart: a stage keeps it once, however many of its layers use
it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from heterps_runtime.models.mixed_precision import CopyWatch
from heterps_runtime.profiling.observed_stage import ObservedStage


@dataclass(frozen=True)
class SavedBytes:
    """Bytes of one micro-batch.

    Attributes:
        own: Kept by the layer.
        shared: Kept by the layer, but computed once for all layers of a stage.
    """

    own: float
    shared: float


def saved_bytes(
    stage: ObservedStage, inputs: dict[str, Tensor], target: Tensor, received: tuple[Tensor, ...]
) -> dict[int, SavedBytes]:
    """Runs one forward pass, and counts what each layer keeps, by index of the layer."""
    module = stage.stage.module
    watch = CopyWatch(list(module.parameters()))
    held = [*module.parameters(), *module.buffers(), *inputs.values(), target]
    ignored = {_storage(tensor) for tensor in held}
    current = stage.layer_range[0]
    keepers: dict[int, set[int]] = {}
    sizes: dict[int, int] = {}
    constants: set[int] = set()
    alive: list[Tensor] = []

    def on_layer(index: int, tensors: list[Tensor]) -> None:
        nonlocal current
        current = index
        alive.extend(tensors)
        constants.update(_storage(tensor) for tensor in tensors if not tensor.requires_grad)

    def pack(tensor: Tensor) -> Tensor:
        storage = _storage(tensor)
        if storage not in ignored and storage not in map(_storage, watch.copies):
            keepers.setdefault(storage, set()).add(current)
            sizes[storage] = tensor.untyped_storage().nbytes()
            alive.append(tensor)
        return tensor

    stage.on_layer = on_layer
    try:
        with watch, torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            stage.run_forward(inputs, target, received)
    finally:
        stage.on_layer = None
    constants -= {_storage(tensor) for tensor in received}
    found = {}
    for index in stage.layer_range:
        own = [s for s, users in keepers.items() if s not in constants and index in users]
        shared = [s for s, users in keepers.items() if s in constants and index in users]
        found[index] = SavedBytes(
            float(sum(sizes[storage] for storage in own)),
            float(sum(sizes[storage] for storage in shared)),
        )
    return found


def _storage(tensor: Tensor) -> int:
    """Identifies the memory of a tensor as long as the tensor lives."""
    return tensor.untyped_storage().data_ptr()
