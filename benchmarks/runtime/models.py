"""Models of the runtime benchmark, and their halves as a user of torch's pipelining writes them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from heterps_configs.documents.model.source import ModelSource
from heterps_runtime.huggingface.source import huggingface_source
from heterps_runtime.models.build import build_module, register_factory
from heterps_runtime.profiling.model_source import factory_source

HERE = "benchmarks.runtime.models"
TOKENS = 32
_LLAMA = {
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 512,
}
_GPT2 = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "n_embd": 128,
    "n_layer": 4,
    "n_head": 4,
    "vocab_size": 512,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
}
NAMES = ("mlp", "cnn", "llama", "gpt2")


def linear_pair() -> nn.Sequential:
    """Two tiny linear layers: all that a step takes is overhead."""
    return nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))


class LinearPair(nn.Module):
    """The same two layers in a module with a `forward` of its own, as most models have."""

    def __init__(self) -> None:
        super().__init__()
        self.front, self.back = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, tensor: Tensor) -> Tensor:
        """(B, 64) to (B, 64)."""
        result: Tensor = self.back(self.front(tensor))
        return result


def own_forward() -> LinearPair:
    """Two tiny linear layers; each stage goes through the model's `forward` to find its own."""
    return LinearPair()


def mlp() -> nn.Sequential:
    """Eight linear layers with activations."""
    return nn.Sequential(
        *(part for _ in range(8) for part in (nn.Linear(256, 256), nn.GELU())), nn.Linear(256, 10)
    )


def cnn() -> nn.Sequential:
    """Convolutions with group normalisation, an average and a classifier."""
    blocks = [
        part
        for inputs, outputs in ((3, 16), (16, 16), (16, 32), (32, 32))
        for part in (nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(4, outputs), nn.ReLU())
    ]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))


def source_of(name: str) -> ModelSource:
    """How to build a model of the benchmark."""
    if name in ("llama", "gpt2"):
        config = _LLAMA if name == "llama" else _GPT2
        return huggingface_source(config, sequence_length=TOKENS)
    shape = {"linear_pair": "64", "own_forward": "64", "mlp": "256", "cnn": "3x16x16"}[name]
    return factory_source(f"{HERE}:{name}", [f"x={shape}:float32"])


def half(name: str, rank: int, cut: int) -> nn.Module:
    """The layers in front of `cut` (rank 0) or behind it (rank 1), with memory for parameters."""
    module = build_module(source_of(name))
    if name in ("llama", "gpt2"):
        return _TransformerHalf(name, module, rank, cut - 1)
    if isinstance(module, LinearPair):
        return (module.back if rank else module.front).to_empty(device="cpu")
    assert isinstance(module, nn.Sequential)
    names = [key for key, _ in module.named_children()]
    for key in names[cut:] if rank == 0 else names[:cut]:
        delattr(module, key)
    return module.to_empty(device="cpu")


class _TransformerHalf(nn.Module):
    """The library's own module with half of its blocks, by hand."""

    def __init__(self, name: str, model: nn.Module, rank: int, num_front: int) -> None:
        super().__init__()
        body: Any = model.get_submodule("model" if name == "llama" else "transformer")
        blocks, embedding, norm = (
            ("layers", "embed_tokens", "norm") if name == "llama" else ("h", "wte", "ln_f")
        )
        own = list(getattr(body, blocks))
        kept = own[:num_front] if rank == 0 else own[num_front:]
        setattr(body, blocks, nn.ModuleList(kept))
        body.config.num_hidden_layers = len(kept)
        if rank == 0:
            setattr(body, norm, nn.Identity())
            model.lm_head = nn.Identity()
        else:
            setattr(body, embedding, None)
            if name == "gpt2":
                body.wpe = _Nothing()
        self.model, self._rank = model, rank
        buffers = build_real_buffers(name)
        self.model.to_empty(device="cpu")
        for key, buffer in self.model.named_buffers():
            buffer.copy_(buffers[key])

    def forward(self, tensor: Tensor) -> Tensor:
        """Tokens or hidden states in; hidden states or logits out."""
        key = "input_ids" if self._rank == 0 else "inputs_embeds"
        outputs = self.model(**{key: tensor}, use_cache=False, return_dict=False)
        result: Tensor = outputs[0]
        return result


NUM_BLOCKS = 2


class LlamaBlock(nn.Module):
    """A decoder layer of the library, with the rotary positions that its model gives it."""

    def __init__(self, width: int, heads: int, key_value_heads: int) -> None:
        from transformers import LlamaConfig
        from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

        super().__init__()
        config = LlamaConfig(
            hidden_size=width,
            intermediate_size=11 * width // 4,
            num_attention_heads=heads,
            num_key_value_heads=key_value_heads,
        )
        config._attn_implementation = "sdpa"  # what a whole model chooses by itself
        self.layer, self.rotary = LlamaDecoderLayer(config, 0), LlamaRotaryEmbedding(config)

    def forward(self, tensor: Tensor) -> Tensor:
        """(B, T, W) to (B, T, W)."""
        places = torch.arange(tensor.shape[1], device=tensor.device).unsqueeze(0)
        made: Any = self.layer(tensor, position_embeddings=self.rotary(tensor, places))
        result: Tensor = made[0] if isinstance(made, tuple) else made
        return result


def llama_blocks_source(size: tuple[int, ...]) -> ModelSource:
    """How to build some blocks: width, heads, heads of keys and values, tokens, samples."""
    width, heads, key_value_heads, tokens, _ = size

    def blocks() -> nn.Sequential:
        return nn.Sequential(
            *(LlamaBlock(width, heads, key_value_heads) for _ in range(NUM_BLOCKS))
        )

    return factory_source(register_factory(blocks), [f"x={tokens}x{width}:float32"])


class _Nothing(nn.Module):
    """Positions are added in the first half."""

    def forward(self, positions: Tensor) -> Tensor:
        return torch.zeros(1)


def build_real_buffers(name: str) -> dict[str, Tensor]:
    """Buffers of the whole model with their values (rotary frequencies)."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = _LLAMA if name == "llama" else _GPT2
    kwargs = {key: value for key, value in config.items() if key != "model_type"}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **kwargs))
    return dict(model.named_buffers())
