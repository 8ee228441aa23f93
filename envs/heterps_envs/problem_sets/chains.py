"""Random placement problems in real units, for training and test sets. Deterministic by seed.

Models of `heterps_envs.problem_sets.model_families` meet clusters of
`heterps_envs.problem_sets.clusters`. Seconds come from the roofline idea of
`heterps_envs.layer_costs.seconds`: the slower of arithmetic and memory traffic. Every problem has a
placement: memories are multiples of the least that one needs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

import numpy as np

from heterps_configs.arguments import check_range, check_seed
from heterps_configs.errors import UnknownNameError
from heterps_envs.arrays import Floats
from heterps_envs.closed_form.memory_packing import least_memory_scale
from heterps_envs.cost_tables import CostTables, RingLinks, StageOptions
from heterps_envs.problem_sets.clusters import DrawnCluster, catalogue_cluster, free_cluster
from heterps_envs.problem_sets.model_families import (
    BYTES_PER_ELEMENT,
    FAMILIES,
    ModelLayers,
    draw_model,
    log_uniform,
    noise,
)

MICRO_BATCHES = (4, 8, 16, 32, 64)
GPIPE_SHARE, CATALOGUE_SHARE = 0.1, 0.5
# Weight, gradient and AdamW state in reduced precision, with float32 master weights.
STATE_BYTES_PER_PARAMETER = 16.0
# Memory as a multiple of the least with which a placement is known: of the tight problems, of the
# others. Clusters of the catalogue keep its sizes in half of the others where the model fits.
TIGHT_SHARE, TIGHT_MEMORY, ROOMY_MEMORY = 0.3, (1.02, 1.25), (1.3, 20.0)
NATURAL_SHARE = 0.5


class Sizes(NamedTuple):
    """Fewest and most layers, device classes, and devices of one class."""

    layers: tuple[int, int]
    classes: tuple[int, int]
    count_range: tuple[int, int]


def generate(
    count: int,
    seed: int,
    layers: tuple[int, int] = (8, 32),
    classes: tuple[int, int] = (2, 4),
    count_range: tuple[int, int] = (1, 4),
    families: Sequence[str] = FAMILIES,
) -> list[CostTables]:
    """Draws problems; problem i depends on `seed` and i alone, so longer lists extend shorter ones.

    Each problem has a placement. `TIGHT_SHARE` of them have less than 1.3 times the least memory
    that any placement needs.

    Args:
        count: How many.
        seed: Any non-negative integer.
        layers: Smallest and largest number of layers.
        classes: The same of device classes.
        count_range: The same of devices of one class.
        families: Names of `FAMILIES`; each is as likely as any other.

    Raises:
        UnknownNameError: There is no such family.
        HeterpsError: A range is empty, or the seed is none.
    """
    check_seed(seed)
    for name, limits in (("layers", layers), ("classes", classes), ("count_range", count_range)):
        check_range(name, limits, least=1)
    for family in families:
        if family not in FAMILIES:
            raise UnknownNameError("family of models", family, FAMILIES)
    sizes = Sizes(layers, classes, count_range)
    return [draw(np.random.default_rng([seed, index]), sizes, families) for index in range(count)]


def fingerprint(problems: Sequence[CostTables]) -> str:
    """16 hexadecimal digits of the problems' numbers, at four significant digits."""
    digest = hashlib.sha256()
    for tables in problems:
        for name, found in _arrays(tables):
            value = np.asarray(found, dtype=float)
            values = np.atleast_1d(value).ravel()
            digest.update(name.encode() + ",".join(f"{x:.3e}" for x in values).encode())
    return digest.hexdigest()[:16]


def _arrays(tables: CostTables) -> Iterator[tuple[str, Any]]:
    """All numbers of a problem by name; those of rings and options, where it has any, too."""
    for field in fields(tables):
        found = getattr(tables, field.name)
        if isinstance(found, RingLinks):
            yield from found._asdict().items()
        elif isinstance(found, StageOptions):
            yield from ((own.name, getattr(found, own.name)) for own in fields(found))
        elif found is not field.default:  # what came later does not change older problems
            yield field.name, found


def draw(
    rng: np.random.Generator,
    sizes: Sizes,
    families: Sequence[str],
    *,
    counts: Sequence[int] = (),
    micro_batches: int = 0,
) -> CostTables:
    """One problem.

    Args:
        rng: Draws it.
        sizes: Uniform between these.
        families: See `generate`.
        counts: Devices of each class, where they are known already.
        micro_batches: Of a step, where they are.
    """
    layers, classes, count_range = sizes
    num_layers = int(rng.integers(layers[0], layers[1] + 1))
    num_classes = int(rng.integers(classes[0], classes[1] + 1))
    model = draw_model(families[int(rng.integers(len(families)))], rng, num_layers)
    is_catalogue = bool(rng.random() < CATALOGUE_SHARE)
    cluster = (catalogue_cluster if is_catalogue else free_cluster)(rng, num_classes)
    device_count = rng.integers(count_range[0], count_range[1] + 1, num_classes).astype(np.int64)
    device_count = np.array(counts, np.int64) if counts else device_count
    forward, backward = _seconds(rng, model, cluster)
    state_bytes = model.parameters * STATE_BYTES_PER_PARAMETER
    drawn, is_gpipe = int(rng.choice(MICRO_BATCHES)), bool(rng.random() < GPIPE_SHARE)
    micro_batches = micro_batches or drawn
    least = least_memory_scale(
        state_bytes, model.activation_bytes, cluster.memory_bytes,
        device_count, micro_batches, is_gpipe, rng,
    )  # fmt: skip
    output_bytes = model.output_bytes.copy()
    output_bytes[-1] = 0.0
    return CostTables(
        num_micro_batches=micro_batches,
        is_gpipe=is_gpipe,
        forward_s=forward,
        backward_s=backward,
        optimizer_s=(2 * state_bytes)[:, None] / (0.7 * cluster.bandwidth_bytes_per_s),
        state_bytes=state_bytes,
        gradient_bytes=model.parameters * BYTES_PER_ELEMENT,
        activation_bytes=model.activation_bytes,
        output_bytes=output_bytes,
        device_count=device_count,
        memory_bytes=cluster.memory_bytes * _memory_scale(rng, least, is_catalogue),
        price_usd_per_hour=cluster.price_usd_per_hour,
        latency_s=cluster.latency_s,
        inverse_bandwidth_s_per_byte=cluster.inverse_bandwidth_s_per_byte,
    )


def _seconds(
    rng: np.random.Generator, model: ModelLayers, cluster: DrawnCluster
) -> tuple[Floats, Floats]:
    """(L, T) forward and backward; the same on classes of one type."""
    arithmetic = model.flops[:, None] / (rng.uniform(0.3, 0.6) * cluster.flops_per_s)
    traffic = model.traffic_bytes[:, None] / (0.7 * cluster.bandwidth_bytes_per_s)
    launch = log_uniform(rng, 1e-5, 2e-4)
    spread = noise(rng, 0.08, *arithmetic.shape)[:, cluster.type_index]
    forward = (np.maximum(arithmetic, traffic) + launch) * spread
    return forward, 2 * forward


def _memory_scale(rng: np.random.Generator, least: float, is_catalogue: bool) -> float:
    """What the drawn memories are multiplied by; their ratios stay."""
    is_tight, is_natural = rng.random() < TIGHT_SHARE, rng.random() < NATURAL_SHARE
    tight, roomy = rng.uniform(*TIGHT_MEMORY), log_uniform(rng, *ROOMY_MEMORY)
    if is_tight:
        return float(least * tight)
    if is_catalogue and is_natural and least * ROOMY_MEMORY[0] <= 1:
        return 1.0
    return least * roomy
