"""Whether groups of devices can do all layers of all micro-batches: a covering problem's dual.

Give layer l a worth `w_l`, all layers together 1. A device of class t earns at most
`e_t = max over its options and ranges of share * worth of the range / devices of the group`. If all
devices together earn less than 1, some layer is not done: no plan takes so few seconds. Any worths
prove that; good ones are found by raising the worth of layers that are done too little, where every
class does what earns it most (multiplicative weights: Arora, Hazan and Kale, 2012).
"""

from __future__ import annotations

import math
from typing import Any

from heterps_envs.compiled import checked


@checked
def least_earned(n: Any, shares: Any, worth: Any, iterations: int, cover: Any) -> float:
    """The least that all devices are found to earn together; below 1: not all layers are done.

    Args:
        n: `Needs`.
        shares: From `most_shares`; those behind one below 0 are not read.
        worth: (L,) worths to begin with; the best found are written to it.
        iterations: At most.
        cover: (L,) scratch.
    """
    num_layers, num_options = len(worth), len(n.class_of)
    now, best, least = worth.copy(), worth.copy(), math.inf
    earned = cover * 0.0
    chosen = [(0, 0, 0) for _ in range(len(n.num_devices))]
    for step in range(iterations):
        per_class = [0.0 for _ in range(len(n.num_devices))]
        total = 0.0
        for layer in range(num_layers):
            earned[layer] = total
            total += now[layer]
        for option in range(num_options):
            kind = n.class_of[option]
            for first in range(num_layers):
                behind = 0.0
                for last in range(first, num_layers):
                    share = shares[option, first, last]
                    if share < 0:
                        break
                    behind += now[last]
                    value = share * behind / n.degree[option]
                    if value > per_class[kind]:
                        per_class[kind] = value
                        chosen[kind] = (option, first, last)
        value = 0.0
        for kind in range(len(n.num_devices)):
            value += n.num_devices[kind] * per_class[kind]
        value /= total
        if value < least:
            least = value
            best[:] = now / total
        if least < 1.0 - 1e-9:
            break
        cover[:] = 0.0
        for kind in range(len(n.num_devices)):
            option, first, last = chosen[kind]
            if per_class[kind] > 0:
                amount = n.num_devices[kind] * shares[option, first, last] / n.degree[option]
                for layer in range(first, last + 1):
                    cover[layer] += amount
        scale = max(cover.max(), 1e-300)
        rate = 1.0 / math.sqrt(1.0 + step)
        for layer in range(num_layers):
            now[layer] = now[layer] / total * math.exp(-rate * cover[layer] / scale)
    worth[:] = best
    return least
