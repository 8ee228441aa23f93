"""A drifted problem as a run would show it: stage times with noise, and what is learned of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from heterps_envs.arrays import Code, Floats
from heterps_envs.closed_form.formula import evaluate_one
from heterps_envs.closed_form.kernel_tables import KernelTables
from heterps_envs.closed_form.placement import decode
from heterps_envs.cost_tables import CostTables
from heterps_envs.online.belief import DEFAULT_SPREADS, Factors, Spreads, StageTime, TypeBelief

KIND_SIGMA, LAYER_SIGMA, NOISE_SIGMA = 0.35, 0.15, 0.02


def scaled(tables: CostTables, forward: Floats, backward: Floats) -> CostTables:
    """Seconds times (L, T) factors; the optimizer's take those of the forward pass."""
    return dataclasses.replace(
        tables,
        forward_s=tables.forward_s * forward,
        backward_s=tables.backward_s * backward,
        optimizer_s=tables.optimizer_s * forward,
    )


def drifted(tables: CostTables, rng: np.random.Generator) -> CostTables:
    """The truth: a factor for each class, and one for each layer on a class."""
    factors = np.exp(
        KIND_SIGMA * rng.standard_normal(tables.num_classes)
        + LAYER_SIGMA * rng.standard_normal(tables.forward_s.shape)
    )
    return scaled(tables, factors, factors)


def step_time_s(code: Code, kernel: KernelTables) -> float:
    """Closed-form step time."""
    return float(evaluate_one(code, kernel, np.zeros(kernel.num_classes, np.int64))[0])


def deployed(code: Code, truth: CostTables, rng: np.random.Generator) -> list[list[StageTime]]:
    """What a run of the placement measures, for each class; every replica has noise of its own."""
    found: list[list[StageTime]] = [[] for _ in range(truth.num_classes)]
    used = [0] * truth.num_classes
    for stage in decode(code):
        kind, part = stage.device_class, slice(stage.first_layer, stage.last_layer + 1)
        for device in range(used[kind], used[kind] + stage.replicas):
            ends = (stage.first_layer, stage.last_layer)
            forward = float(truth.forward_s[part, kind].sum()) * _noise(rng)
            backward = float(truth.backward_s[part, kind].sum()) * _noise(rng)
            found[kind].append(StageTime(device, "forward", *ends, forward))
            found[kind].append(StageTime(device, "backward", *ends, backward))
        used[kind] += stage.replicas
    return found


def _noise(rng: np.random.Generator) -> float:
    return float(np.exp(NOISE_SIGMA * rng.standard_normal()))


class TablesBelief:
    """What is believed of cost tables: one `TypeBelief` for each class, all its devices equal."""

    def __init__(self, tables: CostTables, spreads: Spreads = DEFAULT_SPREADS) -> None:
        self._tables = tables
        self._kinds = [
            TypeBelief(tables.forward_s[:, kind], tables.backward_s[:, kind], int(count), spreads)
            for kind, count in enumerate(tables.device_count)
        ]

    def observe(self, times: Sequence[Sequence[StageTime]]) -> None:
        """Takes what one deployment measured."""
        for kind, own in zip(self._kinds, times, strict=True):
            kind.observe(own)

    def tables(self) -> CostTables:
        """The problem as it most likely is now."""
        return self._scaled([kind.type_factors() for kind in self._kinds])

    def optimistic_tables(self, deviations: float) -> CostTables:
        """The problem if every layer on every class were so many standard deviations faster."""
        return self._scaled([kind.optimistic_type_factors(deviations) for kind in self._kinds])

    def drawn_tables(self, rng: np.random.Generator) -> CostTables:
        """The problem as it might be."""
        return self._scaled([kind.draw_type_factors(rng) for kind in self._kinds])

    def _scaled(self, factors: Sequence[Factors]) -> CostTables:
        return scaled(
            self._tables,
            np.stack([each.forward for each in factors], axis=1),
            np.stack([each.backward for each in factors], axis=1),
        )
