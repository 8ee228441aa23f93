"""A plain `nn.Sequential` of unequal layers: `heterps_runtime.examples.sequential:perceptron`."""

from __future__ import annotations

from itertools import pairwise

from torch import nn


def perceptron(
    inputs: int = 64, width: int = 512, depth: int = 6, classes: int = 10
) -> nn.Sequential:
    """A multilayer perceptron whose middle layers are twice as wide.

    Args:
        inputs: Numbers of one sample.
        width: Of the outer hidden layers.
        depth: Hidden layers.
        classes: Of the output.
    """
    widths = [inputs, *(width * (2 if 0 < i < depth - 1 else 1) for i in range(depth))]
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], classes))
