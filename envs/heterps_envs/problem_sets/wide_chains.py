"""Random problems of all sizes, to train on: few devices and thousands, with stage options or not.

Half of them are those of `heterps_envs.problem_sets.chains` in its own sizes, so that what is
common is not forgotten. The others have log-uniform numbers of layers and devices, speeds up to
fifty times apart, now and then wide-area links, and in a third of them stage options: groups that
split layers, activations computed again, state shared by replicas.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from heterps_envs.arrays import Floats
from heterps_envs.cost_tables import CostTables, StageOptions
from heterps_envs.problem_sets.chains import Sizes, draw
from heterps_envs.problem_sets.model_families import FAMILIES, log_uniform

SMALL = Sizes(layers=(8, 32), classes=(2, 4), count_range=(1, 4))
SMALL_SHARE = 0.5
OPTIONS_SHARE = 1 / 3
# Micro-batches of a step where there are many devices: enough that most can be replicas.
MANY_MICRO_BATCHES = (16, 32, 64, 128, 256, 512)
# Further spread of the classes' speeds, beyond what the cluster was drawn with.
FURTHER_SPREAD = 5.0
DEGREES = (2, 4, 8)
# Of a group: how much of the time its devices spend on sums, for each doubling.
SUM_SHARE = (0.02, 0.3)


def generate_wide(
    count: int,
    seed: int,
    layers: tuple[int, int],
    classes: tuple[int, int],
    count_range: tuple[int, int],
) -> list[CostTables]:
    """Draws problems; problem i depends on `seed` and i alone.

    Args:
        count: How many.
        seed: Any non-negative integer.
        layers: Fewest and most layers.
        classes: The same of device classes; options do not exceed the most.
        count_range: The same of devices of one class.
    """
    sizes = Sizes(layers, classes, count_range)
    return [_draw(np.random.default_rng([seed, 7, index]), sizes) for index in range(count)]


def _draw(rng: np.random.Generator, sizes: Sizes) -> CostTables:
    if rng.random() < SMALL_SHARE:
        small = Sizes(
            *(
                (min(own[0], limit[1]), min(own[1], limit[1]))
                for own, limit in zip(SMALL, sizes, strict=True)
            )
        )
        return draw(rng, small, FAMILIES)
    num_layers = _log_integer(rng, *sizes.layers)
    num_classes = int(rng.integers(sizes.classes[0], sizes.classes[1] + 1))
    largest = _log_integer(rng, *sizes.count_range)
    counts = [_log_integer(rng, sizes.count_range[0], largest) for _ in range(num_classes)]
    has_options = rng.random() < OPTIONS_SHARE
    micro_batches = int(rng.choice(MANY_MICRO_BATCHES))
    tables = draw(
        rng, Sizes((num_layers,) * 2, (num_classes,) * 2, sizes.count_range), FAMILIES,
        counts=counts, micro_batches=micro_batches,
    )  # fmt: skip
    tables = _apart(rng, tables)
    return _with_options(rng, tables, sizes.classes[1]) if has_options else tables


def _log_integer(rng: np.random.Generator, low: int, high: int) -> int:
    """From `low` to `high`; the logarithms are uniform."""
    return int(min(high, np.floor(np.exp(rng.uniform(np.log(low), np.log(high + 1))))))


def _apart(rng: np.random.Generator, tables: CostTables) -> CostTables:
    """Some classes slower than they were drawn, up to fifty times apart together."""
    factor = np.where(
        rng.random(tables.num_classes) < 0.3,
        np.exp(rng.uniform(0.0, np.log(FURTHER_SPREAD), tables.num_classes)),
        1.0,
    )
    names = ("forward_s", "backward_s", "optimizer_s")
    return replace(tables, **{name: getattr(tables, name) * factor for name in names})


def _with_options(rng: np.random.Generator, tables: CostTables, most: int) -> CostTables:
    """The same problem with options, as many as `most` leaves room for."""
    columns = [(kind, 1, False, False) for kind in range(tables.num_classes)]
    recomputes, shares = rng.random() < 0.6, rng.random() < 0.4
    further = []
    for kind in range(tables.num_classes):
        fitting = [degree for degree in DEGREES if degree <= tables.device_count[kind]]
        degrees = [1, *fitting[: int(rng.integers(0, len(fitting) + 1))]]
        for degree in degrees:
            further += [
                (kind, degree, again, shared)
                for again in ((False, True) if recomputes else (False,))
                for shared in ((False, True) if shares else (False,))
                if (degree, again, shared) != (1, False, False)
            ]
    room = most - len(columns)
    chosen = rng.permutation(len(further))[: max(room, 0)]
    columns = sorted(columns + [further[index] for index in chosen])
    return _tables_of(rng, tables, columns)


def _tables_of(
    rng: np.random.Generator,
    tables: CostTables,
    columns: Sequence[tuple[int, int, bool, bool]],
) -> CostTables:
    kinds = np.array([kind for kind, *_ in columns])
    degrees = np.array([degree for _, degree, *_ in columns], float)
    again = np.array([bool(entry[2]) for entry in columns])
    shared = np.array([bool(entry[3]) for entry in columns])
    sums = 1.0 + log_uniform(rng, *SUM_SHARE) * np.log2(degrees)
    forward = tables.forward_s[:, kinds] / degrees * sums
    backward = tables.backward_s[:, kinds] / degrees * sums + np.where(again, forward, 0.0)
    state = np.repeat(tables.state_bytes[:, None], len(columns), axis=1) / degrees
    # Optimizer state and float32 weights are three quarters of a parameter's bytes.
    sharded = np.where(shared, 0.75 * state, 0.0)
    kept: Floats = np.repeat(tables.activation_bytes[:, None], len(columns), axis=1) / degrees
    kept = np.where(again, 0.15 * kept, kept)
    return replace(
        tables,
        forward_s=forward,
        backward_s=backward,
        optimizer_s=tables.optimizer_s[:, kinds] / degrees,
        memory_bytes=tables.memory_bytes[kinds],
        price_usd_per_hour=tables.price_usd_per_hour[kinds] * degrees,
        latency_s=tables.latency_s[np.ix_(kinds, kinds)],
        inverse_bandwidth_s_per_byte=tables.inverse_bandwidth_s_per_byte[np.ix_(kinds, kinds)],
        options=StageOptions(
            class_of_option=kinds.astype(np.int64),
            devices_of_option=degrees.astype(np.int64),
            state_bytes=state - sharded,
            sharded_bytes=sharded,
            shards_state=shared,
            gradient_bytes=np.repeat(tables.gradient_bytes[:, None], len(columns), axis=1)
            / degrees,
            activation_bytes=kept,
        ),
    )
