"""Imports Cephalo's table (benson-guo/cephalo, MIT): milliseconds of one transformer block by GPU.

The file is model -> GPU -> sequence length -> number format -> `[slope, intercept]` of the forward
pass and of the backward pass over the micro-batch size, and, where there are four entries, the
milliseconds of both passes for micro-batches of 1, 2, ... samples. Entries of older layouts (one
number, or two without lists) are left out: they do not say which pass they are of.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Literal, NamedTuple

from heterps_configs.importers.json_entry import Entry

_MILLISECOND = 1e-3
# Lines may cross zero.
_LEAST = -1e9
# Where only the two lines over the micro-batch size are known, they are read at these sizes.
LINE_SIZES = (1, 2, 4, 8)
BlockKind = Literal["llama", "gpt", "encoder"]


class Block(NamedTuple):
    """A transformer block.

    Attributes:
        kind: `llama`: attention is one kernel; `gpt` and `encoder`: scores go through memory.
    """

    kind: BlockKind
    hidden_size: int
    num_heads: int
    intermediate_size: int


class BlockTimes(NamedTuple):
    """Seconds of a block on a GPU, by micro-batch size.

    Attributes:
        model: Name in the file; `BLOCKS` has its sizes.
        gpu: Name of a device type.
        is_line: The seconds are read from a line, not measured one by one.
    """

    model: str
    gpu: str
    sequence_length: int
    dtype: Literal["float16", "float32"]
    micro_batch_sizes: tuple[int, ...]
    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    is_line: bool


_LLAMA_TINY, _LLAMA_7B = Block("llama", 2048, 32, 5632), Block("llama", 4096, 32, 11008)
# Sizes as in the same repository.
BLOCKS = {
    "deepspeedgpt_test": Block("gpt", 512, 128, 2048),
    "deepspeedgpt_1.3b": Block("gpt", 2048, 128, 8192),
    "deepspeedgpt_6.7b": Block("gpt", 4096, 128, 16384),
    "deepspeedgpt_175b": Block("gpt", 12288, 96, 49152),
    "deepspeedllama_tiny": _LLAMA_TINY,
    "deepspeedllama_3b": Block("llama", 3200, 32, 8640),
    "deepspeedllama_7b": _LLAMA_7B,
    "deepspeedllama_65b": Block("llama", 8192, 64, 22016),
    "deepspeedllamav2_tiny": _LLAMA_TINY,
    "deepspeedllamav2_7b": _LLAMA_7B,
    "deepspeedvit_e": Block("encoder", 1792, 16, 15360),
    "deepspeedbert_base": Block("encoder", 768, 12, 3072),
    "deepspeedbert_large": Block("encoder", 1024, 16, 4096),
}
GPUS = {
    "a100x40": "A100-40G",
    "v100x16": "V100-16G",
    "v100x32": "V100-32G",
    "v100-pciex16": "V100-16G-PCIe",
    "h100-nvl": "H100-94G-NVL",
    "a6000": "RTX-A6000",
    "rtx3090": "RTX-3090",
    "t4": "T4",
    "l4": "L4",
    "a10g": "A10G",
    "p40": "P40",
}


def load_block_times(path: str | os.PathLike[str]) -> list[BlockTimes]:
    """Reads `model_latencies.json`; models and GPUs without known sizes are left out.

    Raises:
        DocumentError: The file is malformed.
        HeterpsError: The file cannot be read.
    """
    return list(_all_times(Entry.from_json(path)))


def _all_times(top: Entry) -> Iterator[BlockTimes]:
    for model, by_gpu in top.items():
        for gpu, by_length in by_gpu.items() if model in BLOCKS else ():
            for length, by_dtype in by_length.items() if gpu in GPUS else ():
                for dtype, entry in by_dtype.items():
                    found = _passes(entry)
                    if found is not None:
                        yield BlockTimes(
                            model, GPUS[gpu], _length(length, by_dtype), _dtype(dtype, entry),
                            *found,
                        )  # fmt: skip


_Passes = tuple[tuple[int, ...], tuple[float, ...], tuple[float, ...], bool]


def _passes(entry: Entry) -> _Passes | None:
    """Sizes, seconds of both passes, and whether they are read from a line."""
    if not isinstance(entry.value, list) or not entry.value:
        return None
    parts = entry.entries()
    if not isinstance(parts[0].value, list):
        return None
    if len(parts) not in (2, 4):
        entry.fail("must have two or four lists")
    if len(parts) == 2:
        lines = [_numbers(part) for part in parts]
        if any(len(line) != 2 for line in lines):
            entry.fail("a line must be a slope and an intercept")
        seconds = [
            tuple(max(0.0, slope * size + start) for size in LINE_SIZES) for slope, start in lines
        ]
        return LINE_SIZES, seconds[0], seconds[1], True
    forward, backward = _numbers(parts[2]), _numbers(parts[3])
    count = min(len(forward), len(backward))
    return tuple(range(1, count + 1)), forward[:count], backward[:count], False


def _numbers(entry: Entry) -> tuple[float, ...]:
    return tuple(_MILLISECOND * part.number(_LEAST) for part in entry.entries())


def _length(text: str, entry: Entry) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) <= 2**20):
        entry.fail("the key must be a sequence length")
    return int(text)


def _dtype(text: str, entry: Entry) -> Literal["float16", "float32"]:
    if text not in ("float16", "float32"):
        entry.fail("the key must be float16 or float32")
    return "float16" if text == "float16" else "float32"
