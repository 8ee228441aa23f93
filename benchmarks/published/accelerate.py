"""Hugging Face accelerate's device maps beside an exact split, on Llama with unequal budgets.

    pip install accelerate
    python benchmarks/published/published.py --workloads FOLDER --only accelerate

`infer_auto_device_map` fills one GPU after the other; `get_balanced_memory` before it is what
`device_map="auto"` does. Both know bytes only. The seconds are predictions for a stream of
sequences: the forward roofline of the shipped profiles, messages over PCIe 4.0 x16, and for weights
that went to CPU or disk one transfer over the same link in every pass, which flatters a disk.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from heterps_agents.systems.pipeedge.chain_bottleneck import Chain, ChainSplit, split_chain
from heterps_configs.documents.device import device_type_named
from heterps_configs.documents.job import Job
from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.errors import HeterpsError
from heterps_configs.library import load_profile
from heterps_envs.layer_costs.seconds import layer_times

GIBIBYTE = 2**30
PCIE_BYTES_PER_S = 32e9
WEIGHT_BYTES = 2
# Shipped profile, budgets in GiB, and which cards offer them.
CASES = (
    ("llama-7b", (10, 6, 4), ("RTX-4090", "RTX-4090", "RTX-4090")),
    ("llama-7b", (10, 6, 4), ("RTX-4090", "A10G", "T4")),
    ("llama-70b", (80, 48, 24), ("A100-80G", "A100-80G", "A100-80G")),
    ("llama-70b", (80, 48, 24), ("A100-80G", "A100-80G", "RTX-3090")),
)

DeviceMap = Mapping[str, int | str]


def rows(workloads: Path, quick: bool, seed: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Three rows for each case: both calls of accelerate and ours. Needs no files.

    Raises:
        HeterpsError: accelerate is not installed.
    """
    del workloads, quick, seed
    if importlib.util.find_spec("accelerate") is None:
        raise HeterpsError("accelerate is not installed: pip install accelerate")
    table: list[dict[str, Any]] = []
    met = []
    for name, budgets, types in CASES:
        profile = load_profile(name)
        chain = chain_of(profile, budgets, types)
        case = (
            f"{name} on {' + '.join(f'{b} GiB {t}' for b, t in zip(budgets, types, strict=True))}"
        )
        theirs = []
        for call, device_map, seconds in device_maps(profile, budgets):
            homes = [device_map[layer.name.rpartition("+")[2]] for layer in profile.layers]
            theirs.append(predicted_s(chain, homes))
            table.append(_row(case, call, homes, theirs[-1], seconds))
        split_chain(chain)
        start = time.process_time()
        split = split_chain(chain)
        seconds = time.process_time() - start
        row = _row(case, "heterps, exact", homes_of(split), split.bottleneck_s, seconds)
        met.append(split.bottleneck_s < min(theirs) and row["spilled_layers"] == 0)
        table.append(row)
    return table, {"accelerate_met": f"{sum(met)} of {len(met)}"}


def chain_of(profile: ModelProfile, budgets: Sequence[float], types: Sequence[str]) -> Chain:
    """Forward passes of one sequence at a time; every device is a class of its own."""
    job = Job(global_batch_size=1, dtype="float16")
    times = layer_times(profile, [device_type_named(name) for name in types], job)
    count = len(budgets)
    outputs = [layer.output_bytes for layer in profile.layers]
    return Chain(
        seconds=times.forward_s,
        memory_bytes=WEIGHT_BYTES
        * np.array([layer.num_parameters for layer in profile.layers], float),
        cut_bytes=np.array([0.0, *outputs]),
        buffers=1.0,
        counts=np.ones(count, np.int64),
        capacity_bytes=np.array(budgets, float) * GIBIBYTE,
        bandwidth_bytes_per_s=np.full((count, count), PCIE_BYTES_PER_S),
    )


def device_maps(
    profile: ModelProfile, budgets: Sequence[int]
) -> list[tuple[str, DeviceMap, float]]:
    """Both calls, the map of each, and its CPU seconds (the best of three)."""
    accelerate, utils, torch, transformers = map(
        importlib.import_module, ("accelerate", "accelerate.utils", "torch", "transformers")
    )
    logging.getLogger("accelerate").setLevel(logging.ERROR)
    assert profile.source is not None
    assert profile.source.config is not None
    config = transformers.AutoConfig.for_model(**profile.source.config)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config).to(torch.float16)
    memory = {index: budget * GIBIBYTE for index, budget in enumerate(budgets)}
    options = {"no_split_module_classes": ["LlamaDecoderLayer"], "dtype": torch.float16}

    def filled() -> DeviceMap:
        return dict(accelerate.infer_auto_device_map(model, max_memory=dict(memory), **options))

    def balanced() -> DeviceMap:
        even = utils.get_balanced_memory(model, max_memory=dict(memory), **options)
        return dict(accelerate.infer_auto_device_map(model, max_memory=even, **options))

    calls: dict[str, Callable[[], DeviceMap]] = {
        "infer_auto_device_map": filled,
        'device_map="auto"': balanced,
    }
    results = []
    for name, call in calls.items():
        spent = []
        for _ in range(3):
            start = time.process_time()
            found = call()
            spent.append(time.process_time() - start)
        results.append((name, found, min(spent)))
    return results


def homes_of(split: ChainSplit) -> list[int | str]:
    """The device of every layer."""
    return [
        stage.device_class
        for stage in split.stages
        for _ in range(stage.first_layer, stage.end_layer)
    ]


def predicted_s(chain: Chain, homes: Sequence[int | str]) -> float:
    """Bottleneck of a device map; spilled weights pass over the link to device 0 in every pass."""
    busy = np.zeros(len(chain.counts))
    slowest_message_s = 0.0
    for layer, home in enumerate(homes):
        device = home if isinstance(home, int) else 0
        busy[device] += chain.seconds[layer, device]
        if not isinstance(home, int):
            busy[device] += chain.memory_bytes[layer] / PCIE_BYTES_PER_S
        if layer and home != homes[layer - 1]:
            slowest_message_s = max(slowest_message_s, chain.cut_bytes[layer] / PCIE_BYTES_PER_S)
    return max(float(busy.max()), slowest_message_s)


def _row(
    case: str, call: str, homes: Sequence[int | str], bottleneck_s: float, seconds: float
) -> dict[str, Any]:
    return {
        "case": case,
        "call": call,
        "layers_by_device": " / ".join(str(homes.count(device)) for device in range(3)),
        "spilled_layers": sum(isinstance(home, str) for home in homes),
        "bottleneck_s": bottleneck_s,
        "cpu_s": seconds,
    }
