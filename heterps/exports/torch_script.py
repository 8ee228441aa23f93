"""Scripts: what those of several targets share, and that for torch.distributed.pipelining."""

from __future__ import annotations

# The model, and examples of its data. Doubled braces are single ones in the script.
MODEL_AND_DATA = '''def build_model() -> torch.nn.Module:
{build}


def example(batch_size: int) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Inputs in order, and the target."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for shape, classes in {entries}:
        size = (batch_size, *shape)
        found.append(
            torch.randn(size, generator=generator)
            if classes is None
            else torch.randint(classes, size, generator=generator)
        )
    return found[:-1], found[-1]


def loss_function(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    if target.dtype == torch.int64:
        return torch.nn.functional.cross_entropy(output.flatten(0, -2), target.flatten())
    return torch.nn.functional.mse_loss(output, target)'''
# What both kinds of stages share.
SCRIPT = '''"""{model} in {count} stages, as a plan of heterps says; one process for each device.

    torchrun --nproc-per-node {size} train.py

Rank by rank: {devices}. Weights, data and optimizer are examples; put your own there.
"""

import json
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.pipelining import {imports}, {schedule}

NAMES = {names}
NUM_MICRO_BATCHES, MICRO_BATCH_SIZE, NUM_STEPS = {num_micro_batches}, {micro_batch_size}, 3


{model_and_data}


def first_output(output):
    return output if isinstance(output, torch.Tensor) else output[0]


class Contiguous(torch.autograd.Function):
    """What is sent has to be contiguous: gradients here, outputs in `after`."""

    @staticmethod
    def forward(context, tensor):
        return tensor.view_as(tensor)

    @staticmethod
    def backward(context, gradient):
        return gradient.contiguous()


def before(module, inputs):
    return tuple(Contiguous.apply(x) if x.requires_grad else x for x in inputs)


def after(module, inputs, output):
    if isinstance(output, torch.Tensor):
        return output.contiguous()
    return tuple(tensor.contiguous() for tensor in output)


{stages}

def main() -> None:
    uses_gpus = torch.cuda.is_available()
    dist.init_process_group("nccl" if uses_gpus else "gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", rank) if uses_gpus else torch.device("cpu")
    torch.manual_seed(0)
    stages = build_stages(rank, size, device)
    for stage in stages:
        stage.submod.register_forward_pre_hook(before)
        stage.submod.register_forward_hook(after)
    parameters = [p for stage in stages for p in stage.submod.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3)
    schedule = {schedule}({given}, NUM_MICRO_BATCHES, loss_fn=loss_function)
    inputs, target = example(MICRO_BATCH_SIZE * NUM_MICRO_BATCHES)
    for step in range(NUM_STEPS):
        losses = []
        own = [tensor.to(device) for tensor in inputs] if rank == 0 else []
        schedule.step(*own, target=target.to(device), losses=losses)
        optimizer.step()
        optimizer.zero_grad()
        if losses:
            print(f"step {{step + 1}}: loss {{torch.stack(losses).mean().item():.6f}}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
'''
# Cut by torch itself at the modules that stages begin with.
SPLIT = '''SPLIT_POINTS = {splits}  # of each stage but the first: the module it begins with


class Whole(torch.nn.Module):
    """The model with inputs in order, and its first output alone."""

    def __init__(self) -> None:
        super().__init__()
        self.model = build_model()

    def forward(self, *inputs):
        return first_output(self.model(*inputs))


def build_stages(rank, size, device):
    pipe = pipeline(
        Whole(),
        mb_args=tuple(example(MICRO_BATCH_SIZE)[0]),
        split_spec={{f"model.{{name}}": SplitPoint.BEGINNING for name in SPLIT_POINTS}},
    )
    return [pipe.build_stage(i, device) for i in range(rank, pipe.num_stages, size)]
'''
# Of a stack that computes positions for all its blocks at once, which torch's own cut would have to
# send through all stages: each stage computes them again.
PARTS = '''FIRST_BLOCKS = {firsts}  # of each stage


class Part(torch.nn.Module):
    """Some blocks; embedding in front of the first ones, head behind the last ones."""

    def __init__(self, number: int) -> None:
        super().__init__()
        model = build_model()
        self.stack = model.{stack}
        self.is_first, self.is_last = number == 0, number == len(FIRST_BLOCKS) - 1
        stop = None if self.is_last else FIRST_BLOCKS[number + 1]
        self.stack.layers = self.stack.layers[FIRST_BLOCKS[number] : stop]
        if not self.is_first:
            self.stack.embed_tokens = None
        if not self.is_last:
            self.stack.norm = torch.nn.Identity()
        self.head = model.lm_head if self.is_last else torch.nn.Identity()

    def forward(self, x):
        inputs = dict(input_ids=x) if self.is_first else dict(inputs_embeds=x)
        return self.head(self.stack(**inputs)[0])


def build_stages(rank, size, device):
    found = []
    for number in range(rank, len(FIRST_BLOCKS), size):
        torch.manual_seed(0)
        part = Part(number).to(device)
        found.append(PipelineStage(part, number, len(FIRST_BLOCKS), device))
    return found
'''
BUILD_HUGGINGFACE = """    import transformers

    content = json.loads((Path(__file__).parent / "config.json").read_text())
    kind = content.pop("model_type")
    config = transformers.AutoConfig.for_model(kind, **content, use_cache=False)
    return transformers.{architecture}(config)"""
