"""The files of an export for DeepSpeed's pipeline. Doubled braces are single ones in the files."""

from __future__ import annotations

PARTITION = '''"""{model} in {count} stages, as a plan of heterps says.

    model = PlannedPipeline(layers, loss_fn=...)

takes as many layers as LAYERS has, in that order.
"""

from deepspeed.pipe import PipelineModule

LAYERS = {layers}
# Layers in front of each stage, and all of them.
PARTS = {parts}
# Layers whose activations are computed again for the backward pass.
RECOMPUTED = {recomputed}


class PlannedPipeline(PipelineModule):
    """DeepSpeed's own methods balance numbers, parameters or types of layers; this one is told."""

    def __init__(self, layers, **options):
        super().__init__(layers, num_stages=len(PARTS) - 1, **options)

    def _partition_layers(self, method):
        if len(self._layer_specs) != PARTS[-1]:
            raise ValueError(f"{{len(self._layer_specs)}} layers, and PARTS are of {{PARTS[-1]}}")
        stage = self._topo.get_coord(self.global_rank).pipe
        self.parts = PARTS
        self._set_bounds(PARTS[stage], PARTS[stage + 1])
'''
SCRIPT = '''"""{model} in {count} stages, as a plan of heterps says; one process for each device.

    torchrun --nproc-per-node {size} train.py

Rank by rank: {devices}. Weights, data and optimizer are examples; put your own there.
"""

import copy
import functools
import json
from pathlib import Path

import deepspeed
import torch
from deepspeed.pipe import LayerSpec, TiedLayerSpec

from partition import LAYERS, PARTS, RECOMPUTED, PlannedPipeline

CONFIG = json.loads((Path(__file__).parent / "ds_config.json").read_text())
MICRO_BATCH_SIZE, NUM_STEPS = CONFIG["train_micro_batch_size_per_gpu"], 3


{model_and_data}


{modules}


class Layer(torch.nn.Module):
    """One of LAYERS."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.inner = module(number)

    def forward(self, x):
        return self.inner(x)


class Recomputed(Layer):
    """One that is computed again for the backward pass."""


def kind(number: int) -> type[Layer]:
    return Recomputed if number in RECOMPUTED else Layer


{specifications}


def micro_batches(replica: int, num_replicas: int):
    """Those of one replica, step by step."""
    inputs, target = example(CONFIG["train_batch_size"])
    pairs = zip(inputs[0].split(MICRO_BATCH_SIZE), target.split(MICRO_BATCH_SIZE))
    own = list(pairs)[replica::num_replicas]
    while True:
        yield from own


def main() -> None:
    deepspeed.init_distributed()
    pipeline = PlannedPipeline(
        specifications(), loss_fn=loss_function, checkpointable_layers=["Recomputed"{partial}]
    )
    parameters = [parameter for parameter in pipeline.parameters() if parameter.requires_grad]
    engine, *_ = deepspeed.initialize(
        model=pipeline, model_parameters=parameters, config=CONFIG
    )
    data = micro_batches(engine.grid.get_data_parallel_rank(), engine.grid.data_parallel_size)
    for step in range(NUM_STEPS):
        loss = engine.train_batch(data)
        if engine.global_rank == 0:
            print(f"step {{step + 1}}: loss {{loss.item():.6f}}", flush=True)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
'''
# A stack that computes positions for all its blocks at once: each block computes them again.
STACK = '''@functools.cache
def modules() -> tuple[list[torch.nn.Module], torch.nn.Module]:
    """Embedding, blocks, norm and head; and the stack without them, which computes positions."""
    torch.manual_seed(0)
    model = build_model()
    stack = model.{stack}
    found = [stack.embed_tokens, *stack.layers, stack.norm, model.lm_head]
    stack.embed_tokens, stack.layers, stack.norm = None, torch.nn.ModuleList(), torch.nn.Identity()
    return found, stack


class Block(torch.nn.Module):
    def __init__(self, block: torch.nn.Module, stack: torch.nn.Module) -> None:
        super().__init__()
        self.stack = copy.deepcopy(stack)
        self.stack.layers.append(block)

    def forward(self, x):
        return self.stack(inputs_embeds=x)[0]


def module(number: int) -> torch.nn.Module:
    found, stack = modules()
    is_block = 0 < number < len(LAYERS) - 2
    return Block(found[number], stack) if is_block else found[number]'''
SEQUENCE = """@functools.cache
def modules() -> list[torch.nn.Module]:
    torch.manual_seed(0)
    return list(build_model())


def module(number: int) -> torch.nn.Module:
    return modules()[number]"""
APART = """def specifications() -> list[LayerSpec]:
    return [LayerSpec(kind(number), number) for number in range(len(LAYERS))]"""
# The head computes with the embedding's parameter: DeepSpeed adds up both gradients.
TIED = """def project(layer: Layer, x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.linear(x, layer.inner.weight)


def specifications() -> list[LayerSpec]:
    inside = [LayerSpec(kind(number), number) for number in range(1, len(LAYERS) - 1)]
    shared = functools.partial(
        TiedLayerSpec, "embedding", kind(0), 0, tied_weight_attr="inner.weight"
    )
    return [shared(), *inside, shared(forward_fn=project)]"""
