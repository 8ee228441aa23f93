"""The zoo: forty architectures of transformers small enough to train here, twenty at full size.

Full sizes are those of the models' published configs (`config.json` of the name in the comment or
key); what is not said is the default of their config class.
"""

from __future__ import annotations

from typing import Any, NamedTuple

Config = dict[str, Any]
SEQUENCE_LENGTH = 16
# A tenth of a second.
SOUND = "input_values=1600:float32"

_DECODER: Config = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 256, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
_SIXTEEN = {**_DECODER, "head_dim": 16}
_MIXTURE = {"num_experts": 4, "num_experts_per_tok": 2}
_OLD: Config = {"n_embd": 64, "n_layer": 4, "n_head": 4, "n_positions": 64, "vocab_size": 256}
_ENCODER: Config = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
    "vocab_size": 256, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
_PAIR: Config = {
    "d_model": 64, "encoder_layers": 3, "decoder_layers": 3, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 96, "decoder_ffn_dim": 96, "vocab_size": 256,
    "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "decoder_start_token_id": 1, "forced_eos_token_id": 2,
}  # fmt: skip
_VISION: Config = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
    "image_size": 32, "patch_size": 8,
}  # fmt: skip
_SPEECH: Config = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
    "conv_dim": [32, 32, 32], "conv_stride": [5, 2, 2], "conv_kernel": [10, 3, 3],
    "num_feat_extract_layers": 3, "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4, "vocab_size": 32,
}  # fmt: skip
_LATENT = {
    "q_lora_rank": 32, "kv_lora_rank": 32, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16,
    "v_head_dim": 16,
}  # fmt: skip

TINY: dict[str, Config] = {
    "llama": _DECODER,
    "mistral": _DECODER,
    "qwen2": _DECODER,
    "qwen3": _SIXTEEN,
    "gemma": _SIXTEEN,
    "gemma2": _SIXTEEN,
    "gemma3_text": _SIXTEEN,
    "phi": _DECODER,
    "phi3": _DECODER,
    "olmo2": _DECODER,
    "stablelm": _DECODER,
    "starcoder2": _DECODER,
    "cohere": _DECODER,
    "granite": _DECODER,
    "mixtral": {**_DECODER, "num_local_experts": 4},
    "qwen2_moe": {
        **_DECODER, **_MIXTURE, "moe_intermediate_size": 48, "shared_expert_intermediate_size": 48,
    },
    "qwen3_moe": {**_SIXTEEN, **_MIXTURE, "moe_intermediate_size": 48},
    "olmoe": {**_DECODER, **_MIXTURE},
    "gpt_oss": {**_SIXTEEN, "num_local_experts": 4, "num_experts_per_tok": 2},
    "deepseek_v3": {
        **_DECODER, **_LATENT, "num_key_value_heads": 4, "moe_intermediate_size": 48,
        "n_routed_experts": 8, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2,
        "first_k_dense_replace": 1,
    },
    "gpt2": _OLD,
    "gptj": {**_OLD, "rotary_dim": 8},
    "gpt_neox": _ENCODER,
    "opt": {
        "hidden_size": 64, "ffn_dim": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
        "vocab_size": 256, "max_position_embeddings": 64, "word_embed_proj_dim": 64,
    },
    "bloom": {"hidden_size": 64, "n_layer": 4, "n_head": 4, "vocab_size": 256},
    "falcon": {
        "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 256,
    },
    "mamba": {"hidden_size": 64, "num_hidden_layers": 4, "vocab_size": 256, "state_size": 8},
    "bert": _ENCODER,
    "roberta": _ENCODER,
    "deberta-v2": _ENCODER,
    "t5": {
        "d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 3, "num_heads": 4, "vocab_size": 256,
        # Attention without scaling: at the usual size rounding errors of float32 grow with depth.
        "initializer_factor": 0.3,
    },
    "bart": _PAIR,
    "whisper": {
        **_PAIR, "num_mel_bins": 16, "max_source_positions": 32, "max_target_positions": 32,
        "suppress_tokens": None, "begin_suppress_tokens": None,
    },
    "wav2vec2": _SPEECH,
    "vit": _VISION,
    "swin": {
        "embed_dim": 16, "depths": [2, 2, 2], "num_heads": [2, 2, 4], "image_size": 32,
        "patch_size": 2, "window_size": 4, "drop_path_rate": 0.0,
    },
    "convnext": {"hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 2, 1], "image_size": 32},
    "segformer": {
        "hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 1, 1], "image_size": 64,
        "drop_path_rate": 0.0,
    },
    "clip": {
        "text_config": {**_ENCODER, "model_type": "clip_text_model"},
        "vision_config": {**_VISION, "model_type": "clip_vision_model"}, "projection_dim": 32,
    },
    "llava": {
        "text_config": {**_DECODER, "model_type": "llama"},
        "vision_config": {**_VISION, "model_type": "clip_vision_model"}, "image_token_id": 255,
    },
}  # fmt: skip


class FullSize(NamedTuple):
    """A published size, from its config alone.

    Attributes:
        config: Its `config.json`.
        cluster: Where it is placed.
        times: How often the nodes of that cluster are there.
    """

    config: Config
    cluster: str = "h100-pod"
    times: int = 1


def _dense(kind: str, width: int, inner: int, layers: int, heads: int, **other: Any) -> FullSize:
    return FullSize(
        {
            "model_type": kind, "hidden_size": width, "intermediate_size": inner,
            "num_hidden_layers": layers, "num_attention_heads": heads, **other,
        }
    )  # fmt: skip


FULL: dict[str, FullSize] = {
    "Llama-3-8B": _dense(
        "llama", 4096, 14336, 32, 32, num_key_value_heads=8, vocab_size=128256, rope_theta=5e5
    ),
    "Llama-3-70B": _dense(
        "llama", 8192, 28672, 80, 64, num_key_value_heads=8, vocab_size=128256, rope_theta=5e5
    ),
    "Mistral-7B": _dense("mistral", 4096, 14336, 32, 32, num_key_value_heads=8, vocab_size=32000),
    "Qwen2-7B": _dense("qwen2", 3584, 18944, 28, 28, num_key_value_heads=4, vocab_size=152064),
    "Qwen3-8B": _dense(
        "qwen3", 4096, 12288, 36, 32, num_key_value_heads=8, head_dim=128, vocab_size=151936
    ),
    "Gemma-2-9B": _dense(
        "gemma2", 3584, 14336, 42, 16, num_key_value_heads=8, head_dim=256, vocab_size=256000
    ),
    "Phi-3-mini": _dense("phi3", 3072, 8192, 32, 32, num_key_value_heads=32, vocab_size=32064),
    "Mixtral-8x7B": _dense(
        "mixtral", 4096, 14336, 32, 32, num_key_value_heads=8, vocab_size=32000,
        num_local_experts=8,
    ),
    "Qwen3-30B-A3B": _dense(
        "qwen3_moe", 2048, 6144, 48, 32, num_key_value_heads=4, head_dim=128, vocab_size=151936,
        num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768,
    ),
    "DeepSeek-V3": FullSize({"model_type": "deepseek_v3"}, times=16),
    "gpt-oss-20b": FullSize({"model_type": "gpt_oss", "num_hidden_layers": 24,
                             "num_local_experts": 32}),
    "GPT-2 XL": FullSize(
        {"model_type": "gpt2", "n_embd": 1600, "n_layer": 48, "n_head": 25}, "a100-v100"
    ),
    "OPT-6.7B": FullSize(
        {"model_type": "opt", "hidden_size": 4096, "ffn_dim": 16384, "num_hidden_layers": 32,
         "num_attention_heads": 32, "word_embed_proj_dim": 4096}
    ),
    "BERT-large": FullSize(
        {"model_type": "bert", "hidden_size": 1024, "intermediate_size": 4096,
         "num_hidden_layers": 24, "num_attention_heads": 16}, "a100-v100-t4",
    ),
    "T5-3B": FullSize(
        {"model_type": "t5", "d_model": 1024, "d_ff": 16384, "d_kv": 128, "num_heads": 32,
         "num_layers": 24}, "a100-v100",
    ),
    "Whisper-large-v3": FullSize(
        {"model_type": "whisper", "d_model": 1280, "encoder_layers": 32, "decoder_layers": 32,
         "encoder_attention_heads": 20, "decoder_attention_heads": 20, "encoder_ffn_dim": 5120,
         "decoder_ffn_dim": 5120, "num_mel_bins": 128, "vocab_size": 51866}, "a100-v100",
    ),
    "wav2vec2-large": FullSize(
        {"model_type": "wav2vec2", "hidden_size": 1024, "intermediate_size": 4096,
         "num_hidden_layers": 24, "num_attention_heads": 16}, "a100-v100",
    ),
    "ViT-huge": FullSize(
        {"model_type": "vit", "hidden_size": 1280, "intermediate_size": 5120,
         "num_hidden_layers": 32, "num_attention_heads": 16, "patch_size": 14}, "a100-v100-t4",
    ),
    "Swin-large": FullSize(
        {"model_type": "swin", "embed_dim": 192, "depths": [2, 2, 18, 2],
         "num_heads": [6, 12, 24, 48]}, "a100-v100-t4",
    ),
    "LLaVA-1.5-7B": FullSize(
        {"model_type": "llava", "image_token_id": 32000,
         "text_config": {"model_type": "llama", "vocab_size": 32064},
         "vision_config": {"model_type": "clip_vision_model", "hidden_size": 1024,
                           "intermediate_size": 4096, "num_hidden_layers": 24,
                           "num_attention_heads": 16, "image_size": 336, "patch_size": 14}},
    ),
}  # fmt: skip
