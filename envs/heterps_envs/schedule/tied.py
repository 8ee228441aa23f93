"""Tied layers: layers that use parameters of another layer, and when their gradients are complete.

Workers read this, too: it imports nothing that takes time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from heterps_configs.documents.model_profile import ModelProfile


def tied_share(profile: ModelProfile, layer: int) -> float:
    """Share of a layer's parameters that another layer owns."""
    entry = profile.layers[layer]
    return entry.tied_parameters / entry.num_parameters if entry.num_parameters else 0.0


def has_own(profile: ModelProfile, layer: int) -> bool:
    """Whether a layer trains parameters that no other layer owns."""
    entry = profile.layers[layer]
    return entry.trained_parameters > 0 and entry.num_parameters > entry.tied_parameters


def adding_layers(
    profile: ModelProfile, layers: Iterable[int], own_only: Collection[int] = ()
) -> frozenset[int]:
    """The layers whose backward passes add to the gradients of a bucket.

    Users of tied parameters stand for these in a bucket; their owner and its other users add to
    the same gradients.

    Args:
        profile: The model.
        layers: Of the bucket.
        own_only: Users of which it has other parameters alone.
    """
    found = set(layers)
    sharing = found.difference(own_only)
    for owner, users in profile.tied_layers.items():
        if not sharing.isdisjoint(users):
            found.update((owner, *users))
    return frozenset(found)
