"""Layer times of published runs without a profile of the model: from the calibration of cards.

What remains of Sailor's files are sizes and links. The calibration is fitted without any time of
the model; times of a card that has no others are those of its kin. A block is traced as one GPU of
its group computes it. What its sums over the group take is what they took in blocks of *other*
models in such a group, by their bytes; where there are none, rings over the links of a node.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.fidelity.published_split import NamedRun
from heterps.calibration.megatron_model import MegatronShape, traced_megatron
from heterps.calibration.sailor_blocks import (
    BLOCK_LAYER,
    GPUS,
    SHAPES,
    arithmetic,
    sailor_models,
)
from heterps.calibration.samples import published_samples
from heterps_configs.documents.device import device_type_named
from heterps_configs.documents.job import Job
from heterps_configs.importers.sailor import SailorLayerTimes, SailorModel, SailorShape
from heterps_configs.importers.sailor_problem import FLOAT_BYTES
from heterps_configs.importers.sailor_runs import SailorGroup
from heterps_configs.importers.sailor_times import PROFILED_LAYERS
from heterps_envs.card_times.document import CardCalibration
from heterps_envs.card_times.fit import fit_cards
from heterps_envs.card_times.formula import card_seconds
from heterps_envs.engines.megatron_runs import MegatronSetting, all_gather_s

# Adam in float32 reads a parameter, its gradient and two moments, and writes all but the gradient.
_OPTIMIZER_BYTES_PER_PARAMETER = 28
_SUMS_OF_A_PASS = 2


def with_card_times(
    setting: MegatronSetting, runs: Sequence[NamedRun], workloads: Path
) -> MegatronSetting | None:
    """The setting with estimated times for every group of the runs, and no measured ones.

    Returns:
        None where nobody has said the sizes of the model, or there are no times of other models.
    """
    model = setting.model
    if model.name not in SHAPES:
        return None
    calibration = _calibration_without(workloads, model.name)
    if calibration is None:
        return None
    groups = {
        (SailorShape(group.gpu, run.plan.micro_batch_size, group.tensor_parallel)): group
        for _, run in runs
        for stage in run.plan.stages
        for group in stage.groups
    }
    others = [other for other in sailor_models(workloads) if other.name != model.name]
    times = {
        shape: _times(setting, calibration, others, group, shape.micro_batch_size)
        for shape, group in groups.items()
    }
    return replace(setting, model=replace(model, times=times))


@lru_cache(maxsize=4)
def _calibration_without(workloads: Path, model: str) -> CardCalibration | None:
    published = published_samples(workloads)
    seen = [sample for sample in published.samples if sample.model != model]
    return fit_cards(seen, published.sources, {}) if seen else None


class _GroupSeconds(NamedTuple):
    """What a pass over a block takes in a group beyond the products of one GPU."""

    forward_s: float
    backward_s: float


def _group_seconds(
    setting: MegatronSetting, others: Sequence[SailorModel], group: SailorGroup, num_bytes: float
) -> _GroupSeconds:
    """Two sums of `num_bytes` and what issues them: as in blocks of other models, or two rings."""
    found = sorted(_beyond_their_share(others, group))
    if not found:
        ring_s = 2 * all_gather_s(setting.intra_node, group, num_bytes)
        return _GroupSeconds(_SUMS_OF_A_PASS * ring_s, _SUMS_OF_A_PASS * ring_s)
    sizes, forward_s, backward_s = zip(*found, strict=True)
    return _GroupSeconds(
        float(np.interp(num_bytes, sizes, forward_s)),
        float(np.interp(num_bytes, sizes, backward_s)),
    )


def _beyond_their_share(
    others: Sequence[SailorModel], group: SailorGroup
) -> Iterator[tuple[float, float, float]]:
    """Bytes of a sum; seconds of both passes less a GPU's share of what one GPU alone takes."""
    degree = group.tensor_parallel
    for other in others:
        shape = SHAPES[other.name]
        for measured, times in other.times.items():
            alone = SailorShape(group.gpu, measured.micro_batch_size, 1)
            if (measured.gpu, measured.tensor_parallel) == (group.gpu, degree) and (
                alone in other.times
            ):
                whole, part = other.times[alone][BLOCK_LAYER], times[BLOCK_LAYER]
                yield (
                    _sum_bytes(shape, measured.micro_batch_size),
                    part.forward_s - whole.forward_s / degree,
                    part.backward_s - whole.backward_s / degree,
                )


def _sum_bytes(shape: MegatronShape, micro_batch_size: int) -> float:
    return float(FLOAT_BYTES * micro_batch_size * shape.sequence_length * shape.hidden_size)


def _times(
    setting: MegatronSetting,
    calibration: CardCalibration,
    others: Sequence[SailorModel],
    group: SailorGroup,
    size: int,
) -> tuple[SailorLayerTimes, ...]:
    """Of all layers: embeddings, equal blocks, head."""
    model, degree = setting.model, group.tensor_parallel
    entry = device_type_named(GPUS[group.gpu])
    shape = SHAPES[model.name]._replace(tensor_parallel=degree)
    job = Job(global_batch_size=size, micro_batch_size=size, dtype=arithmetic(model.name))
    seconds = card_seconds(calibration, traced_megatron(shape), entry, job)
    beyond = _GroupSeconds(0.0, 0.0)
    if degree > 1:
        beyond = _group_seconds(setting, others, group, _sum_bytes(shape, size))
    update_s = (
        _OPTIMIZER_BYTES_PER_PARAMETER
        * _profiled_parameters(model, degree)
        / entry.memory_bandwidth_bytes_per_s
    )
    # The embeddings have one sum in the forward pass, the head one in the backward pass.
    first, block, head = (
        SailorLayerTimes(
            float(seconds.forward_s[layer]) + forward_share * beyond.forward_s,
            float(seconds.backward_s[layer]) + backward_share * beyond.backward_s,
            update_s,
        )
        for layer, forward_share, backward_share in (
            (0, 1 / _SUMS_OF_A_PASS, 0.0),
            (BLOCK_LAYER, 1.0, 1.0),
            (BLOCK_LAYER + 1, 0.0, 1 / _SUMS_OF_A_PASS),
        )
    )
    return (first, *(block,) * (model.num_layers - 2), head)


def _profiled_parameters(model: SailorModel, degree: int) -> int:
    """Of the small model that an optimizer step was profiled of (`sailor_times.group_times`)."""
    sizes = model.layer_sizes(degree)
    return sum(sizes[index].parameters for index in (*range(1 + PROFILED_LAYERS), len(sizes) - 1))
