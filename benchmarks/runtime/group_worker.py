"""One of the two processes of `benchmarks/runtime/groups.py`, which starts it."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

from benchmarks.runtime.models import NUM_BLOCKS, llama_blocks_source
from heterps_configs.documents.base import Dtype
from heterps_envs.layer_costs.group_slice import GroupSlice
from heterps_runtime.models.build import build_module
from heterps_runtime.models.initialise import initial_values
from heterps_runtime.stages.build import build_stage
from heterps_runtime.stages.stage import StageModule, StagePart
from heterps_runtime.tensor_parallel.plan import split_plan
from heterps_runtime.tracing.trace import trace_source
from heterps_runtime.transport.communication import Communicator
from heterps_runtime.transport.group_sums import GroupSums

NUM_RANKS, NUM_WARM_UPS = 2, 5
# Width, heads, heads of keys and values, tokens, samples.
SIZES = ((256, 8, 4, 64, 4), (512, 8, 8, 64, 4), (1024, 16, 16, 128, 2))
_COLUMNS = (
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj",
)  # fmt: skip
_ROWS = ("self_attn.o_proj", "mlp.down_proj")
DTYPE: Dtype = "float32"
Run = Callable[[], float]


def main(path: Path, repeats: int) -> None:
    """Measures everything together with the other process; rank 0 writes the rows."""
    torch.set_num_threads(1)
    communicator = Communicator()
    rows = [_row(size, communicator, repeats) for size in SIZES]
    if communicator.rank == 0:
        path.write_text(json.dumps(rows))
    communicator.close()


def _row(size: tuple[int, ...], communicator: Communicator, repeats: int) -> dict[str, Any]:
    """Medians of one size; both ways take turns, step by step."""
    width, _, _, tokens, samples = size
    generator = torch.Generator().manual_seed(0)
    batch = torch.randn(samples, tokens, width, generator=generator)
    ours, theirs = _ours(size, communicator), _theirs(size)
    cases = {
        "heterps passes": _passes(ours, batch),
        "torch passes": _passes(theirs, batch),
        "heterps step": _step(ours, batch),
        "torch step": _step(theirs, batch),
    }
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    losses: dict[str, float] = {}
    for repeat in range(NUM_WARM_UPS + repeats):
        for name, run in cases.items():
            communicator.barrier()
            started = time.perf_counter()
            losses[name] = run()
            communicator.barrier()
            if repeat >= NUM_WARM_UPS:
                seconds[name].append(time.perf_counter() - started)
    assert max(losses.values()) - min(losses.values()) < 0.02 * max(losses.values()), losses
    found = {name: statistics.median(values) for name, values in seconds.items()}
    return {
        "width": width,
        "tokens": samples * tokens,
        **{
            f"{what}_{who}_ms": 1e3 * found[f"{who} {what}"]
            for what in ("passes", "step")
            for who in ("heterps", "torch")
        },
        "passes_ratio": found["heterps passes"] / found["torch passes"],
        "step_ratio": found["heterps step"] / found["torch step"],
    }


def _ours(size: tuple[int, ...], communicator: Communicator) -> StageModule:
    """A rank's slice of the blocks, as runs build it."""
    source = llama_blocks_source(size)
    profile = trace_source(source, "blocks")
    ranks = tuple(range(NUM_RANKS))
    part = StagePart(
        0,
        profile.num_layers - 1,
        micro_batch_size=size[-1],
        dtype=DTYPE,
        split=split_plan(source),
        group=GroupSlice(communicator.rank, (0.5, 0.5)),
        sums=GroupSums(communicator.groups([ranks])[ranks], is_on_device=True),
    )
    return build_stage(source, profile, part)


def _theirs(size: tuple[int, ...]) -> nn.Module:
    """The same blocks with the same values, by torch's own way."""
    source = llama_blocks_source(size)
    module = build_module(source, device="cpu")
    values = initial_values(build_module(source), [n for n, _ in module.named_parameters()], 0)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(values[name])
    mesh = init_device_mesh("cpu", (NUM_RANKS,))
    plan: dict[str, ParallelStyle] = {
        f"{block}.layer.{name}": style
        for block in range(NUM_BLOCKS)
        for names, style in ((_COLUMNS, ColwiseParallel()), (_ROWS, RowwiseParallel()))
        for name in names
    }
    return parallelize_module(module, mesh, plan)


def _passes(module: nn.Module, batch: Tensor) -> Run:
    """A forward and a backward pass."""

    def run() -> float:
        if isinstance(module, StageModule):
            (output,) = module({"x": batch})
        else:
            output = module(batch)
        loss = output.square().mean()
        loss.backward()
        module.zero_grad(set_to_none=True)
        return float(loss.detach())

    return run


def _step(module: nn.Module, batch: Tensor) -> Run:
    """The same, and AdamW."""
    parameters = [p for p in module.parameters() if p.requires_grad]
    assert isinstance(module, StageModule) or any(isinstance(p, DTensor) for p in parameters)
    optimizer = torch.optim.AdamW(parameters, lr=1e-6)

    def run() -> float:
        if isinstance(module, StageModule):
            (output,) = module({"x": batch})
        else:
            output = module(batch)
        loss = output.square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())

    return run


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
