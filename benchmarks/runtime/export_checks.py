"""What the parsers of other tools make of an export, beside the plan."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import json
import os
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from heterps_configs.documents.plan import Plan
from heterps_envs.problem import Problem
from heterps_runtime.models.build import build_module

# Of llama-tiny's 16 layers, the first is the embedding and the last norm and head.
NUM_BLOCKS = 14


def version_of(package: str) -> str:
    """Of an installed package; empty: there is none."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def with_tied_head(problem: Problem) -> Problem:
    """The same, with one parameter for embedding and head."""
    profile = problem.profile
    assert profile.source is not None
    config = {**(profile.source.config or {}), "tie_word_embeddings": True}
    first, last = profile.layers[0], profile.layers[-1]
    shared = last.changed(tied_to=first.name, tied_parameters=first.num_parameters)
    layers = (*profile.layers[:-1], shared)
    source = profile.source.changed(config=config)
    return replace(problem, profile=profile.changed(source=source, layers=layers))


def blocks(plan: Plan) -> list[list[int]]:
    """Blocks of each stage of the first chain, counted from 0."""
    stages = [plan.stage(name) for name in plan.pipelines[0].stages]
    return [[i - 1 for i in stage.layers if 0 < i <= NUM_BLOCKS] for stage in stages]


def _same(what: str, found: object, expected: object) -> None:
    assert found == expected, f"{what}: {found}, and the plan has {expected}"


def accelerate(problem: Problem, plan: Plan, folder: Path) -> str:
    """Its own check of a device map, memory as it reads it, and outputs of the dispatched model."""
    big_modeling: Any = importlib.import_module("accelerate")
    tools: Any = importlib.import_module("accelerate.utils")
    device_map = json.loads((folder / "device_map.json").read_text())
    memory = json.loads((folder / "max_memory.json").read_text())
    assert problem.profile.source is not None
    torch.manual_seed(0)
    model = build_module(problem.profile.source, device="cpu").eval()
    tools.check_device_map(model, device_map)
    for size in memory.values():
        _same("bytes", tools.convert_file_size_to_int(size), size)
    ids = torch.arange(64).reshape(1, 64)
    with torch.no_grad():
        expected = model(input_ids=ids).logits
        enough = torch.cuda.device_count() >= len(memory)
        places = device_map if enough else dict.fromkeys(device_map, "cpu")
        sent = big_modeling.dispatch_model(model, places, main_device=None, force_hooks=True)
        found = sent(input_ids=ids).logits.cpu()
    worst = float((found - expected).abs().max())
    assert worst < 1e-4, f"outputs differ by {worst:.1e}"
    where = "GPUs" if enough else "every place the CPU"
    return f"device_map checked, max_memory read, outputs differ by {worst:.0e} ({where})"


def megatron(problem: Problem, plan: Plan, folder: Path) -> str:
    """Megatron-core's config: it reads the layout and checks it against all else."""
    config_module: Any = importlib.import_module("megatron.core.transformer.transformer_config")
    enums: Any = importlib.import_module("megatron.core.transformer.enums")
    counting: Any = importlib.import_module("megatron.core.num_microbatches_calculator")
    given = _arguments(folder / "arguments.txt")
    known = {field.name for field in dataclasses.fields(config_module.TransformerConfig)}
    fields = {name: value for name, value in given.items() if name in known}
    config = config_module.TransformerConfig(
        hidden_size=128, num_attention_heads=4, pipeline_dtype=torch.float32, **fields
    )
    layout, size = config.pipeline_model_parallel_layout, config.pipeline_model_parallel_size
    expected = blocks(plan)
    found, first = [], 0
    for stage in range(len(expected)):
        own = layout.layout[stage % size][stage // size].count(enums.LayerType.decoder)
        found.append(list(range(first, first + own)))
        first += own
    _same("blocks", found, expected)
    calculator = counting.ConstantNumMicroBatchesCalculator(
        given["global_batch_size"], given["micro_batch_size"], len(plan.pipelines), False, 0
    )
    _same("micro-batches", calculator.get(), len(plan.pipelines[0].micro_batches))
    left = sorted(set(given) - known - {"global_batch_size", "micro_batch_size"})
    rest = f"; not in the package: {', '.join(left)}" if left else ""
    return f"TransformerConfig: {layout!r} on {size} ranks{rest}"


def _arguments(path: Path) -> dict[str, Any]:
    """By the name of the field; numbers as numbers, flags as true."""
    found: dict[str, Any] = {}
    for line in path.read_text().splitlines():
        name, *values = shlex.split(line)
        value = values[0] if values else True
        key = name.removeprefix("--").replace("-", "_")
        found[key] = int(value) if str(value).isdecimal() else value
    return found


def torchtitan(problem: Problem, plan: Plan, folder: Path) -> str:
    """Its command line, its Llama with as many blocks, and its own way to take a part."""
    config_module: Any = importlib.import_module("torchtitan.config")
    pipelines: Any = importlib.import_module("torchtitan.distributed.pipeline_parallel")
    importlib.import_module("torchtitan.models.llama3.config_registry")
    words = shlex.split((folder / "arguments.txt").read_text())
    config = config_module.ConfigManager().parse_args(
        ["--module", "llama3", "--config", "llama3_debugmodel", *words]
    )
    settings = config.parallelism
    _same(
        "fields",
        {name: getattr(settings, name) for name in _fields(folder)},
        _fields(folder),
    )
    parts = settings.module_fqns_per_model_part
    described = config.model_spec.model
    described.layers = (described.layers * 3)[:NUM_BLOCKS]
    with torch.device("meta"):
        whole = described.build()
    held = [set(pipelines._split_module(whole, part).state_dict()) for part in parts]
    _same("parameters", set().union(*held), set(whole.state_dict()))
    found = [sorted({int(n.split(".")[1]) for n in own if n.startswith("layers.")}) for own in held]
    _same("blocks", found, blocks(plan))
    count = config.training.local_batch_size // settings.pipeline_parallel_microbatch_size
    _same("micro-batches", count, len(plan.pipelines[0].micro_batches))
    schedules: Any = importlib.import_module("torch.distributed.pipelining.schedules")
    schedules.get_schedule_class(settings.pipeline_parallel_schedule)
    return f"its Llama in {len(parts)} parts, {settings.pipeline_parallel_schedule}"


def _fields(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "parallelism.json").read_text())
    return found


def vllm(problem: Problem, plan: Plan, folder: Path) -> str:
    """Its command line with the config file, and its own split of the layers."""
    platforms: Any = importlib.import_module("vllm.platforms")
    if not torch.cuda.is_available():
        # A wheel for CUDA finds no platform here; its parser does not care which.
        cpu: Any = importlib.import_module("vllm.platforms.cpu")
        platforms.current_platform = cpu.CpuPlatform()
    engine: Any = importlib.import_module("vllm.engine.arg_utils")
    parsing: Any = importlib.import_module("vllm.utils.argparse_utils")
    utils: Any = importlib.import_module("vllm.distributed.utils")
    parser = engine.EngineArgs.add_cli_args(parsing.FlexibleArgumentParser())
    given = parser.parse_args(["--model", "x", "--config", str(folder / "config.yaml")])
    stages = len(plan.pipelines[0].stages)
    degree = plan.stage(plan.pipelines[0].stages[0]).degree
    sizes = (given.pipeline_parallel_size, given.tensor_parallel_size, given.data_parallel_size)
    _same("sizes", sizes, (stages, degree, len(plan.pipelines)))
    line = (folder / "environment.sh").read_text().strip().removeprefix("export ")
    name, _, value = line.partition("=")
    os.environ[name] = value
    try:
        found = [utils.get_pp_indices(NUM_BLOCKS, rank, stages) for rank in range(stages)]
    finally:
        del os.environ[name]
    _same("blocks", found, [(own[0], own[-1] + 1) for own in blocks(plan)])
    return f"get_pp_indices: {found}"
