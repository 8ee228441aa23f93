"""What ranges of layers take behind the passes: optimizer steps, and all-reduces of gradients."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from heterps_agents.systems.sailor.cost import FLOAT_BYTES, all_reduce_s
from heterps_agents.systems.sailor.options import Options
from heterps_configs.errors import HeterpsError
from heterps_configs.importers.sailor import SailorLinks, SailorModel
from heterps_configs.importers.sailor_runs import SailorGroup
from heterps_envs.arrays import Floats


class Ranges(NamedTuple):
    """(O, L + 1, L + 1) each, by first and end layer: slowest optimizer step, and all-reduce."""

    update_s: Floats
    reduce_s: Floats

    @property
    def least_s(self) -> tuple[float, float]:
        """Of every plan at least, of each of the two."""
        return _least_of(self.update_s), _least_of(self.reduce_s)


def ranges_of(model: SailorModel, links: SailorLinks, options: Options, replicas: int) -> Ranges:
    """What every range of layers takes on every option, with so many replicas."""
    return Ranges(_updates(options), _reduces(model, links, options, replicas))


def _updates(options: Options) -> Floats:
    num_options, num_layers = options.update_s.shape
    updates = np.full((num_options, num_layers + 1, num_layers + 1), math.inf)
    for first in range(num_layers):
        running = np.maximum.accumulate(options.update_s[:, first:], axis=1)
        updates[:, first, first + 1 :] = running
    return updates


def _reduces(model: SailorModel, links: SailorLinks, options: Options, replicas: int) -> Floats:
    num_layers = model.num_layers
    reduces = np.full((len(options.names), num_layers + 1, num_layers + 1), math.inf)
    for option, (gpu, degree) in enumerate(options.names):
        groups = (SailorGroup(gpu, degree, options.zone),) * replicas
        parameters = [layer.parameters for layer in model.layer_sizes(degree)]
        known: dict[int, float] = {}
        for first in range(num_layers):
            total = 0
            for end in range(first + 1, num_layers + 1):
                total += parameters[end - 1]
                if total not in known:
                    known[total] = _reduce_or_never(links, groups, total * FLOAT_BYTES)
                reduces[option, first, end] = known[total]
    return reduces


def _least_of(table: Floats) -> float:
    """Of every plan: some stage holds the layer whose least value is largest."""
    num_layers = table.shape[1] - 1
    alone = table[:, np.arange(num_layers), np.arange(1, num_layers + 1)]
    return float(alone.min(axis=0).max())


def _reduce_or_never(
    links: SailorLinks, groups: tuple[SailorGroup, ...], num_bytes: float
) -> float:
    try:
        return all_reduce_s(links, groups, num_bytes)
    except HeterpsError:
        return math.inf
