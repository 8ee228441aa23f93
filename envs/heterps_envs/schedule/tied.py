"""Tied layers: layers that use parameters of another layer, and when their gradients are complete.

Workers read this, too: it imports nothing that takes time.
"""

from __future__ import annotations

from collections.abc import Iterable

from heterps_configs.documents.model_profile import ModelProfile


def tied_share(profile: ModelProfile, layer: int) -> float:
    """Share of a layer's parameters that another layer owns."""
    entry = profile.layers[layer]
    return entry.tied_parameters / entry.num_parameters if entry.num_parameters else 0.0


def adding_layers(profile: ModelProfile, layers: Iterable[int]) -> frozenset[int]:
    """The layers whose backward passes add to the gradients of a bucket of `layers`.

    Users of tied parameters stand for these in a bucket; their owner and its other users add to
    the same gradients.
    """
    found = set(layers)
    for owner, users in profile.tied_layers.items():
        if not found.isdisjoint(users):
            found.update((owner, *users))
    return frozenset(found)
