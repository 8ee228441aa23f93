"""What of a layer a tensor-parallel group splits, against numbers that are derived by hand."""

from __future__ import annotations

from functools import cache

import pytest
from torch import Tensor, nn

from heterps_configs.documents.model.layer import LayerProfile
from heterps_configs.documents.model.tensor_split import TensorSplit
from heterps_configs.documents.model_profile import ModelProfile
from heterps_runtime.huggingface.source import huggingface_source
from heterps_runtime.models.build import register_factory
from heterps_runtime.profiling.model_source import factory_source
from heterps_runtime.tracing.trace import trace_source
from tests.runtime.small_models import TOKENS, profile_of

HIDDEN, COLUMNS, VOCABULARY = 32, 64, 64
FLOAT = 4
STATE = TOKENS * HIDDEN * FLOAT  # what crosses a cut, and what is summed


def _split(layer: LayerProfile) -> TensorSplit:
    assert layer.tensor_split is not None
    return layer.tensor_split


def test_a_llama_block_is_split_by_heads_and_columns() -> None:
    # 4 heads of 8, of which keys and values have 2; 64 columns.
    layer = profile_of("llama").layers[1]
    split = _split(layer)
    assert (split.unit, split.num_units) == ("heads", 4)
    # Query and output 32 x 32, key and value 32 x 16, gate, up and down 32 x 64; norms are whole.
    assert split.parameters == 2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 64
    assert split.parameters == layer.num_parameters - 2 * HIDDEN
    # The feed-forward part divides into columns: its parameters, and what it keeps of a token.
    (finer,) = split.finer
    assert (finer.num_units, finer.parameters) == (COLUMNS, 3 * 32 * 64)
    assert finer.forward_flops == TOKENS * 2 * 3 * 32 * 64
    assert finer.activation_bytes == TOKENS * FLOAT * 4 * COLUMNS
    # The products, all of them: two norms have none.
    assert split.forward_flops == layer.forward_flops
    assert split.backward_flops == layer.backward_flops
    # Of a token are kept: query, keys and values (repeated for every head) and the attention's
    # output, 32 each, and one number of each head; gate, its activation, up, and their product.
    assert split.activation_bytes == TOKENS * FLOAT * (4 * HIDDEN + 4 + 4 * COLUMNS)
    # Whole are the inputs of the two norms and what they make, twice: before and after the weight.
    # Each norm also keeps a number of a token.
    rest = layer.activation_bytes - split.activation_bytes
    assert rest == TOKENS * FLOAT * (6 * HIDDEN + 2)
    # Behind output and down; of what the first and the second norm make, the gradients.
    assert split.forward_sums == split.backward_sums == (STATE, STATE)
    # Outputs of query, key, value, gate, up; inputs of output and down.
    assert split.deferred_bytes == TOKENS * FLOAT * (32 + 2 * 16 + 2 * 64 + 32 + 64)
    # What goes wherever queries go: key and value, until they are repeated for every head.
    shared = split.key_values
    assert shared is not None
    assert (shared.num_units, shared.parameters) == (2, 2 * 32 * 16)
    assert shared.forward_flops == TOKENS * 2 * 2 * 32 * 16
    assert shared.backward_flops == 2 * shared.forward_flops
    assert shared.activation_bytes == 0
    assert shared.deferred_bytes == TOKENS * FLOAT * 2 * 16


def test_keys_and_values_that_an_attention_reads_unrepeated_are_kept_by_their_heads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TRANSFORMERS_SDPA_FORCE_GQA", "1")
    source = profile_of("llama").source
    assert source is not None
    split = _split(trace_source(source, "llama").layers[1])
    shared = split.key_values
    assert shared is not None
    # Query and output, 32 each, and a number of each head; key and value 16 each.
    assert shared.activation_bytes == TOKENS * FLOAT * 2 * 16
    assert split.activation_bytes == TOKENS * FLOAT * (2 * HIDDEN + 4 + 2 * 16 + 4 * COLUMNS)
    assert shared.backward_flops == 2 * TOKENS * 2 * 2 * 32 * 16


def test_a_gpt2_block_is_split_with_its_packed_queries_keys_and_values() -> None:
    # 4 heads of 8; 128 columns.
    layer = profile_of("gpt2").layers[1]
    split = _split(layer)
    assert (split.unit, split.num_units) == ("heads", 4)
    # Packed 32 x 96 and its 96, output 32 x 32, 32 x 128 and its 128, 128 x 32; the biases behind
    # a sum are whole.
    assert split.parameters == 32 * 96 + 96 + 32 * 32 + 32 * 128 + 128 + 128 * 32
    assert split.parameters == layer.num_parameters - 2 * HIDDEN - 4 * HIDDEN
    assert (split.forward_flops, split.backward_flops) == (
        layer.forward_flops,
        layer.backward_flops,
    )
    # Of a token: packed queries, keys, values; attention's output and a number of each head; of
    # gelu, computed in parts, its input, half of it, a tanh, that and one, and the product.
    attention = 3 * HIDDEN + HIDDEN + 4
    assert split.activation_bytes == TOKENS * FLOAT * (attention + 5 * 128)
    # Whole: inputs of both norms, what they make, and two numbers of a token for each.
    rest = layer.activation_bytes - split.activation_bytes
    assert rest == TOKENS * FLOAT * (4 * HIDDEN + 4)
    assert split.forward_sums == split.backward_sums == (STATE, STATE)


@cache
def _mixtral() -> ModelProfile:
    config = {
        "model_type": "mixtral",
        "hidden_size": HIDDEN,
        "intermediate_size": COLUMNS,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "vocab_size": VOCABULARY,
    }
    return trace_source(huggingface_source(config, sequence_length=TOKENS), "mixtral")


def test_a_mixtral_block_is_split_inside_of_its_experts() -> None:
    layer = _mixtral().layers[1]
    split = _split(layer)
    assert (split.unit, split.num_units, split.key_value_heads) == ("heads", 4, 2)
    # As in Llama, with 4 experts; the router, 32 x 4, is whole, and so are the norms.
    assert split.parameters == 2 * 32 * 32 + 2 * 32 * 16 + 4 * 3 * 32 * 64
    assert split.parameters == layer.num_parameters - 4 * HIDDEN - 2 * HIDDEN
    # All products but those of the router.
    assert layer.forward_flops - split.forward_flops == 2 * TOKENS * 32 * 4
    assert layer.backward_flops - split.backward_flops == 2 * 2 * TOKENS * 32 * 4
    # Of a token the attention as in Llama; of each of its 2 experts gate and up, the gate's
    # activation, and the product.
    assert split.activation_bytes == TOKENS * FLOAT * (4 * HIDDEN + 4 + 2 * 4 * COLUMNS)
    # Behind the attention's output and behind the experts, once for all of a token.
    assert split.forward_sums == (STATE, STATE)
    # Of the inputs of attention and experts, and of the weight of each of a token's 2 experts.
    assert sorted(split.backward_sums) == [TOKENS * 2 * FLOAT, STATE, STATE]


def test_a_vocabulary_is_split_in_front_and_behind_and_pads_its_rows() -> None:
    first, *_, last = profile_of("gpt2").layers
    table, head = _split(first), _split(last)
    assert (table.unit, table.sparse_parameters) == ("vocabulary", 64 * HIDDEN)
    assert first.num_parameters - table.parameters == 1024 * HIDDEN  # positions
    assert table.forward_sums == (STATE,)
    assert table.backward_sums == ()
    assert head.parameters == head.tied_parameters == 64 * HIDDEN
    # The largest logit, the sum, and the target's logit of every token.
    assert head.forward_sums == (TOKENS * FLOAT,) * 3
    assert head.backward_sums == (STATE,)
    padded = _split(profile_of("ctr").layers[0])
    assert (padded.parameters, padded.num_units) == (1000 * 16, 1024)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "unit", "sums"), [("bert", "heads", 2), ("vit", "heads", 2)])
def test_models_without_a_plan_of_their_own_are_split_in_pairs(
    name: str, unit: str, sums: int
) -> None:
    split = _split(profile_of(name).layers[1])
    assert (split.unit, split.num_units) == (unit, 4)
    assert len(split.forward_sums) == len(split.backward_sums) == sums


def test_attention_to_another_sequence_sums_two_gradients() -> None:
    layers = {layer.name: layer for layer in profile_of("t5").layers}
    split = _split(layers["decoder.block.1.layer.1"])
    assert split.backward_sums == (STATE, STATE)
    assert layers["encoder.final_layer_norm"].tensor_split is None


def test_a_bottleneck_is_split_by_the_channels_between_two_convolutions() -> None:
    # 1 x 1 to 4 channels, their norm, 3 x 3 to 4 channels; the third convolution is whole.
    layers = {layer.name: layer for layer in profile_of("resnet").layers}
    split = _split(layers["resnet.encoder.stages.1.layers.1"])
    assert (split.unit, split.num_units) == ("channels", 4)
    assert split.parameters == 16 * 4 + 2 * 4 + 9 * 4 * 4


class _Mixed(nn.Module):
    """What lies between its linear layers may be split, or not."""

    def __init__(self, between: nn.Module) -> None:
        super().__init__()
        self.first, self.between = nn.Linear(8, 16), between
        self.second = nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.second(self.between(self.first(x)))
        return output


class _Both(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.relu().reshape(-1, 8).reshape(-1, 16)


@pytest.mark.parametrize(
    ("between", "is_legal"),
    [
        (nn.GELU(), True),
        (nn.Dropout(0.1), True),
        (nn.LayerNorm(16), False),  # needs all columns
        (nn.Softmax(dim=-1), False),
        (_Both(), False),  # columns no longer lie in the last dimension
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_a_pair_is_split_only_where_columns_do_not_meet(between: nn.Module, is_legal: bool) -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([_Mixed(between)])

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = x + self.blocks[0](x)
            return output

    source = factory_source(register_factory(Block), ["x=8:float32"])
    splits = [layer.tensor_split for layer in trace_source(source, "pair").layers]
    assert any(splits) == is_legal
