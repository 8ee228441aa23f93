"""Families of random models: chains of layers in real units, for one micro-batch.

transformer: equal blocks between a heavy embedding and a heavy head. cnn: activations early,
parameters late. ctr: huge tables that compute nothing, then a dense tower. unet: encoder and
decoder with skips; what crosses a cut is the running output and every skip that passes it.
multi-tower: towers one after another in execution order, their outputs carried to the join.
moe: attention and experts in turn; experts have many parameters and few FLOPs for each. rough:
every layer drawn on its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from heterps_envs.arrays import Floats

BYTES_PER_ELEMENT = 2.0
HIDDEN_SIZES = (768, 1024, 2048, 4096, 5120, 8192)
VOCABULARIES = (32_000, 50_257, 128_256)
EXPERTS = (8, 16, 32, 64)
# Experts that see each token, and elements that a feed-forward block is wider than its input.
EXPERTS_PER_TOKEN, WIDENING = 2, 4


class ModelLayers(NamedTuple):
    """(L,) of one micro-batch; FLOPs and traffic of the forward pass."""

    flops: Floats
    traffic_bytes: Floats
    parameters: Floats
    activation_bytes: Floats
    output_bytes: Floats


def draw_model(family: str, rng: np.random.Generator, num_layers: int) -> ModelLayers:
    """A random model of a family of `FAMILIES`."""
    return _DRAWS[family](rng, num_layers)


def noise(rng: np.random.Generator, sigma: float, *shape: int) -> Floats:
    """Factors around 1; `sigma` is the standard deviation of their logarithm."""
    return np.exp(sigma * rng.standard_normal(shape))


def log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    """Every factor between `low` and `high` is as likely as any other."""
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def _transformer(rng: np.random.Generator, num_layers: int) -> ModelLayers:
    hidden, tokens = float(rng.choice(HIDDEN_SIZES)), log_uniform(rng, 512, 8192)
    parameters = np.full(num_layers, 12 * hidden**2)
    flops = 2 * tokens * parameters * rng.uniform(1.0, 1.4)
    activation = np.full(num_layers, 34 * hidden * tokens) * noise(rng, 0.03, num_layers)
    return _language_model(rng, hidden, tokens, flops, parameters, activation)


def _language_model(
    rng: np.random.Generator,
    hidden: float,
    tokens: float,
    flops: Floats,
    parameters: Floats,
    activation: Floats,
) -> ModelLayers:
    """Blocks whose first and last become embedding and head (a single layer is a head)."""
    vocabulary = float(rng.choice(VOCABULARIES))
    output = np.full(len(flops), BYTES_PER_ELEMENT * hidden * tokens)
    parameters[0] = parameters[-1] = vocabulary * hidden
    flops[0], activation[0] = 0.0, output[0]
    flops[-1] = 2 * tokens * vocabulary * hidden
    activation[-1] = 3 * BYTES_PER_ELEMENT * vocabulary * tokens
    traffic = activation + BYTES_PER_ELEMENT * parameters
    return ModelLayers(flops, traffic, parameters, activation, output)


def _cnn(rng: np.random.Generator, num_layers: int) -> ModelLayers:
    depth = np.linspace(0, 1, num_layers)
    samples = log_uniform(rng, 8, 128)
    parameters = 2e4 * np.exp(rng.uniform(3.5, 5.5) * depth) * noise(rng, 0.4, num_layers)
    output = samples * 1.6e6 * np.exp(-2.5 * depth) * noise(rng, 0.3, num_layers)
    activation = output * rng.uniform(3, 10) * noise(rng, 0.3, num_layers)
    flops = samples * 5e8 * noise(rng, 0.6, num_layers)
    return _convolutions(flops, parameters, activation, output)


def _convolutions(
    flops: Floats, parameters: Floats, activation: Floats, output: Floats
) -> ModelLayers:
    """Layers that read and write what they keep."""
    traffic = 2 * activation + BYTES_PER_ELEMENT * parameters
    return ModelLayers(flops, traffic, parameters, activation, output)


def _ctr(rng: np.random.Generator, num_layers: int) -> ModelLayers:
    num_tables = max(1, int(num_layers * rng.uniform(0.15, 0.5)))
    samples = log_uniform(rng, 256, 16_384)
    width = log_uniform(rng, 256, 4096)
    parameters = width**2 * noise(rng, 0.5, num_layers)
    flops = 2 * samples * parameters
    output = samples * width * BYTES_PER_ELEMENT * noise(rng, 0.4, num_layers)
    activation = output * rng.uniform(2, 6)
    traffic = activation + BYTES_PER_ELEMENT * parameters
    tables = slice(0, num_tables)
    parameters[tables] = log_uniform(rng, 1e7, 4e8) * noise(rng, 0.7, num_tables)
    flops[tables] = samples * width
    traffic[tables] = samples * width * rng.uniform(4, 64)
    return ModelLayers(flops, traffic, parameters, activation, output)


def _unet(rng: np.random.Generator, num_layers: int) -> ModelLayers:
    """A level down: a quarter of the pixels, twice the channels; convolutions cost the same."""
    layer = np.arange(num_layers)
    mirror = num_layers - 1 - layer
    depth = np.minimum(layer, mirror)
    level = depth * int(rng.integers(2, 5)) // max(1, (num_layers + 1) // 2)
    decodes = layer > mirror
    samples = log_uniform(rng, 1, 64)
    output = samples * log_uniform(rng, 3e5, 5e6) * 0.5**level * noise(rng, 0.15, num_layers)
    parameters = log_uniform(rng, 2e4, 1e6) * 4.0**level * noise(rng, 0.3, num_layers)
    flops = samples * log_uniform(rng, 2e9, 6e10) * noise(rng, 0.4, num_layers)
    # A decoder's layer reads its skip beside its input.
    has_skip = depth % int(rng.integers(1, 4)) == 0
    wider = np.where(decodes & has_skip, 2.0, 1.0)
    activation = output * rng.uniform(3, 8) * wider
    crossing = output + _passing_skips(np.where(has_skip & (layer < mirror), output, 0.0))
    return _convolutions(flops * wider, parameters * wider, activation, crossing)


def _passing_skips(skip_bytes: Floats) -> Floats:
    """(L,) bytes of earlier layers' skips over the cut behind each layer.

    The skip of layer i goes to layer L - 1 - i. A layer's own output crosses the cut behind it
    anyway, so its skip counts from the next cut on.
    """
    before = np.concatenate([[0.0], np.cumsum(skip_bytes)])
    layer = np.arange(len(skip_bytes))
    first_used = np.minimum(layer, len(skip_bytes) - 1 - layer)
    return np.asarray(before[first_used])


def _multi_tower(rng: np.random.Generator, num_layers: int) -> ModelLayers:
    """Towers of unequal length and width; half of the models pool what a tower returns."""
    num_towers = min(int(rng.integers(2, 5)), max(1, num_layers // 2))
    ends = np.sort(rng.choice(np.arange(1, max(2, num_layers)), num_towers, replace=False))
    tower = np.searchsorted(ends, np.arange(num_layers), side="right")
    joins = tower == num_towers
    samples = log_uniform(rng, 16, 2048)
    width = log_uniform(rng, 256, 2048) * noise(rng, 0.6, num_towers + 1)[tower]
    rows = samples * np.where(joins, 1.0, np.exp(rng.uniform(0, np.log(64), num_towers + 1))[tower])
    parameters = rng.uniform(4, 12) * width**2 * noise(rng, 0.2, num_layers)
    flops = 2 * rows * parameters
    output = BYTES_PER_ELEMENT * rows * width
    activation = output * rng.uniform(4, 17)
    if rng.random() < 0.5:
        output[ends - 1] *= (samples / rows)[ends - 1]
    # Inputs of later towers pass the cuts in front of them, outputs of earlier ones those behind.
    inputs = output[np.concatenate([[0], ends[:-1]])] * rng.uniform(0.05, 0.5)
    returned = output[ends - 1]
    crossing = output.copy()
    for index, end in enumerate(ends):
        crossing[end : ends[-1]] += returned[index]
        crossing[: (ends[index - 1] if index else 0)] += inputs[index]
    traffic = activation + BYTES_PER_ELEMENT * parameters
    return ModelLayers(flops, traffic, parameters, activation, crossing)


def _moe(rng: np.random.Generator, num_layers: int) -> ModelLayers:
    hidden, tokens = float(rng.choice(HIDDEN_SIZES[:4])), log_uniform(rng, 512, 8192)
    attention, expert = 4 * hidden**2, 2 * WIDENING * hidden**2
    is_expert = np.arange(num_layers) % 2 == 0
    experts = float(rng.choice(EXPERTS))
    parameters = np.where(is_expert, experts * expert, attention)
    used = np.where(is_expert, EXPERTS_PER_TOKEN * expert, attention * rng.uniform(1.0, 1.6))
    kept = np.where(is_expert, EXPERTS_PER_TOKEN * (2 * WIDENING + 2), rng.uniform(6, 12))
    activation = BYTES_PER_ELEMENT * kept * hidden * tokens * noise(rng, 0.05, num_layers)
    return _language_model(rng, hidden, tokens, 2 * tokens * used, parameters, activation)


def _rough(rng: np.random.Generator, num_layers: int) -> ModelLayers:
    parameters = log_uniform(rng, 1e6, 2e8) * noise(rng, 1.0, num_layers)
    flops = log_uniform(rng, 1e10, 3e12) * noise(rng, 1.0, num_layers)
    activation = log_uniform(rng, 1e7, 1e9) * noise(rng, 1.0, num_layers)
    output = log_uniform(rng, 1e6, 5e7) * noise(rng, 0.8, num_layers)
    return _convolutions(flops, parameters, activation, output)


_DRAWS: Mapping[str, Callable[[np.random.Generator, int], ModelLayers]] = MappingProxyType(
    {
        "transformer": _transformer,
        "cnn": _cnn,
        "ctr": _ctr,
        "unet": _unet,
        "multi-tower": _multi_tower,
        "moe": _moe,
        "rough": _rough,
    }
)
FAMILIES = tuple(_DRAWS)
