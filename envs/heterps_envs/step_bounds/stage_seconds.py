"""Least seconds of layers in any stage, where a stage takes less than its layers do.

What a stage takes beside its layers was measured, and may be below 0
(`heterps_envs.schedule.workload`). Bounds add up layers, whatever stages they will be in.
"""

from __future__ import annotations

import numpy as np

from heterps_envs.arrays import Floats


def least_forward_s(layers_s: Floats, stage_s: Floats) -> Floats:
    """(L,) seconds of a forward pass that add up to no more than any stage of these layers takes.

    A stage that begins with a layer may take so much less that its first layers take nothing.

    Args:
        layers_s: (L,) of layers.
        stage_s: (L,) of a stage that begins with the layer, beside its layers.
    """
    if not (stage_s < 0).any():
        return layers_s
    least_s, saved_s = layers_s.copy(), 0.0
    for layer, (own_s, beside_s) in enumerate(zip(layers_s, stage_s, strict=True)):
        saved_s = max(saved_s, -beside_s)
        least_s[layer] = max(own_s - saved_s, 0.0)
        saved_s = max(saved_s - own_s, 0.0)
    return least_s


def least_backward_s(layers_s: Floats, stage_s: Floats, weight_gradient_s: Floats) -> Floats:
    """The same of a backward pass, in one proportion to all layers.

    Sums of gradients begin when a share of the pass is over, and that share stays.

    Args:
        layers_s: (L,) of layers.
        stage_s: (L,) of a stage that begins with the layer, beside its layers.
        weight_gradient_s: (L,) the part of `layers_s` that every stage takes.
    """
    if not (stage_s < 0).any():
        return layers_s
    least = 1.0
    for first in np.flatnonzero(stage_s < 0):
        whole_s = np.cumsum(layers_s[first:])
        taken_s = np.maximum(whole_s + stage_s[first], np.cumsum(weight_gradient_s[first:]))
        is_any = whole_s > 0
        least = min(least, float((taken_s[is_any] / whole_s[is_any]).min(initial=1.0)))
    return layers_s * max(least, 0.0)
