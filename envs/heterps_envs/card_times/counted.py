"""What a profile's layers count, as arrays: found once, for all cards, micro-batches and sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from heterps_configs.documents.model.layer import LayerProfile
from heterps_envs.arrays import Floats
from heterps_envs.card_times.families import layer_family

# Where nobody has counted them: of a transformer block, and of a layer of one or two operations.
BLOCK_KERNELS, FEW_KERNELS = 30, 3
# Profiles whose arrays are kept: a model's layers, and those of its tensor-parallel groups.
MOST_KEPT = 64


class CountedLayers(NamedTuple):
    """(L,) each, of one sample where that matters.

    Attributes:
        forward_flops: Of a forward pass.
        backward_flops: Of a backward pass.
        traffic_bytes: That operations of a forward pass read and write, as traced.
        dense_parameters: All but sparse ones.
        trained_parameters: Those that have gradients.
        kernels: That a forward pass launches.
        attention_share: Of the FLOPs, those of products of two activations.
    """

    forward_flops: Floats
    backward_flops: Floats
    traffic_bytes: Floats
    dense_parameters: Floats
    trained_parameters: Floats
    kernels: Floats
    attention_share: Floats


_KEPT: dict[int, tuple[tuple[LayerProfile, ...], CountedLayers]] = {}


def counted(layers: Sequence[LayerProfile]) -> CountedLayers:
    """The arrays of some layers; those of a tuple are kept until many others were asked for."""
    if not isinstance(layers, tuple):
        return _counted(layers)
    known = _KEPT.get(id(layers))
    if known is None:  # what is kept holds its tuple, so no other one has its identity
        while len(_KEPT) >= MOST_KEPT:
            del _KEPT[next(iter(_KEPT))]
        _KEPT[id(layers)] = known = layers, _counted(layers)
    return known[1]


def _counted(layers: Sequence[LayerProfile]) -> CountedLayers:
    dense = [layer.num_parameters - layer.sparse_parameters for layer in layers]
    return CountedLayers(
        forward_flops=np.array([layer.forward_flops for layer in layers], float),
        backward_flops=np.array([layer.backward_flops for layer in layers], float),
        traffic_bytes=np.array([layer.memory_traffic_bytes for layer in layers], float),
        dense_parameters=np.array(dense, float),
        trained_parameters=np.array([layer.trained_parameters for layer in layers], float),
        kernels=np.array([_num_kernels(layer) for layer in layers], float),
        attention_share=np.array([_attention_share(layer) for layer in layers]),
    )


def _num_kernels(layer: LayerProfile) -> int:
    if layer.num_kernels:
        return layer.num_kernels
    return BLOCK_KERNELS if layer_family(layer.kind) == "attention block" else FEW_KERNELS


def _attention_share(layer: LayerProfile) -> float:
    flops = [
        2.0 * each.rows * each.inner * each.columns * each.count for each in layer.matrix_products
    ]
    own = [each.factors == "activations" for each in layer.matrix_products]
    return sum(f for f, is_own in zip(flops, own, strict=True) if is_own) / max(sum(flops), 1.0)
