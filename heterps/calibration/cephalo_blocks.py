"""Cephalo's block times as samples, with blocks as `transformers` builds them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from heterps_configs.documents.base import Dtype
from heterps_configs.documents.device import device_type_named
from heterps_configs.documents.job import Job
from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.importers.cephalo import BLOCKS, Block, BlockTimes, load_block_times
from heterps_envs.card_times.fit import CardSample
from heterps_envs.card_times.work import card_work
from heterps_runtime.huggingface.source import huggingface_source
from heterps_runtime.tracing.trace import trace_source

REPOSITORY = "benson-guo/cephalo"
CEPHALO = Path("cephalo") / "model_latencies.json"


def cephalo_samples(folder: Path) -> Iterator[CardSample]:
    """All samples of Cephalo's table.

    Raises:
        HeterpsError: The file is malformed.
    """
    for times in load_block_times(folder / CEPHALO):
        yield from block_samples(times)


def block_samples(times: BlockTimes) -> Iterator[CardSample]:
    """The samples of one table."""
    entry = device_type_named(times.gpu)
    profile = traced_block(BLOCKS[times.model], times.sequence_length, times.dtype)
    for size, forward_s, backward_s in zip(
        times.micro_batch_sizes, times.forward_s, times.backward_s, strict=True
    ):
        job = Job(global_batch_size=size, micro_batch_size=size, dtype=times.dtype)
        work = card_work(profile.layers, profile.activation_scale(job.dtype), entry, job)
        yield CardSample(
            entry,
            times.model,
            f"{times.model} {times.gpu} {times.sequence_length} {times.dtype}",
            work.units,
            work.forward[0],
            work.backward[0],
            (forward_s, backward_s),
            times.is_line,
            REPOSITORY,
        )


_NUM_TOKENS = 1000
_KINDS = {"llama": "LlamaDecoderLayer", "gpt": "GPT2Block", "encoder": "BertLayer"}


@lru_cache(maxsize=256)
def traced_block(block: Block, sequence_length: int, dtype: Dtype) -> ModelProfile:
    """A profile of one layer: the block, for one sample of so many tokens.

    Attention of a `llama` is one kernel; scores of the others go through memory, as in the older
    implementations that were measured.
    """
    source = huggingface_source(_config(block, sequence_length), sequence_length)
    profile = trace_source(source, block.kind, dtype)
    layer = [layer for layer in profile.layers if layer.kind == _KINDS[block.kind]][-1]
    return profile.changed(source=None, layers=(layer,), measurements=())


def _config(block: Block, sequence_length: int) -> dict[str, Any]:
    attention = "sdpa" if block.kind == "llama" else "eager"
    common = {"vocab_size": _NUM_TOKENS, "attn_implementation": attention}
    if block.kind == "gpt":
        return {
            **common,
            "model_type": "gpt2",
            "architectures": ["GPT2LMHeadModel"],
            "n_embd": block.hidden_size,
            "n_head": block.num_heads,
            "n_inner": block.intermediate_size,
            "n_layer": 2,
            "n_positions": sequence_length,
            "bos_token_id": 0,
            "eos_token_id": 0,
        }
    is_llama = block.kind == "llama"
    return {
        **common,
        "model_type": "llama" if is_llama else "bert",
        "architectures": ["LlamaForCausalLM" if is_llama else "BertForMaskedLM"],
        "hidden_size": block.hidden_size,
        "intermediate_size": block.intermediate_size,
        "num_hidden_layers": 2,
        "num_attention_heads": block.num_heads,
        "max_position_embeddings": sequence_length,
    }
