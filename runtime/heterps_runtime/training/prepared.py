"""A training program under a plan: which model, which loss, which batches."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from itertools import islice
from typing import Any

from torch import Tensor

from heterps_configs.documents.job import Job
from heterps_configs.documents.model.source import ModelSource
from heterps_configs.errors import HeterpsError
from heterps_runtime.models.build import register_factory
from heterps_runtime.models.losses import Loss, MeanLoss, SourceLoss
from heterps_runtime.training.batches import BatchSource, ReadBatches, SyntheticBatches
from heterps_runtime.training.collating import as_tensor, collate_samples
from heterps_runtime.training.program import TrainingProgram
from heterps_runtime.training.sample_order import BEGINNING, Position, SampleOrder
from heterps_runtime.training.samples import divided, samples_of


def source_under(program: TrainingProgram, planned: ModelSource) -> ModelSource:
    """How the model is built in this process: by the program's factory, where it has one."""
    name = _registered(program, planned.kind == "huggingface")
    if name is None:
        return planned
    return planned.changed(kind="factory", factory=name, config=None, architecture=None)


@lru_cache(maxsize=8)
def _registered(program: TrainingProgram, takes_names: bool) -> str | None:
    if program.model is None:
        return None
    return register_factory(program.model, takes_names=takes_names)


def uncounted_average(program: TrainingProgram, job: Job) -> list[str]:
    """What to say of a moving average that the plan knows nothing of."""
    if program.ema_decay is None or job.averages_parameters:
        return []
    return [
        "ema_decay: the plan counts no memory for the moving average, 4 bytes a parameter; a job "
        "with averages_parameters: true does"
    ]


def first_batch(program: TrainingProgram, data: Any, size: int) -> tuple[Any, Tensor]:
    """The first samples of a data set, which say what the model takes."""
    if hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        samples = [data[index] for index in range(min(size, len(data)))]
    else:
        samples = list(islice(iter(data), size))
    if not samples:
        raise HeterpsError("data: is empty; at least one sample is needed")
    if program.collate is collate_samples and isinstance(samples[0], Mapping):
        # What a model takes is numbers; what is none is for people.
        texts = {key for key, value in samples[0].items() if isinstance(value, str | bytes)}
        samples = [{k: v for k, v in sample.items() if k not in texts} for sample in samples]
    inputs, target = divided(program.collate(samples), program.target)
    if isinstance(inputs, Mapping):
        inputs = {name: value for name, value in inputs.items() if value is not None}
    return inputs, as_tensor(target)


def loss_of(program: TrainingProgram, source: ModelSource) -> Loss:
    """The loss: the program's, or that of the model's source."""
    return SourceLoss(source) if program.loss is None else MeanLoss(program.loss)


def batches_of(
    program: TrainingProgram,
    source: ModelSource,
    job: Job,
    seed: int,
    origin: Position = BEGINNING,
) -> BatchSource:
    """Where the batches of a training come from: the program's data, or drawn ones.

    Args:
        program: With or without data.
        source: Of the model.
        job: Sizes.
        seed: Of the run.
        origin: Where the run goes on in the data.
    """
    if program.data is None:
        return SyntheticBatches(source, job, seed)
    order = SampleOrder(
        0,
        job.global_batch_size,
        seed,
        shuffle=program.shuffle,
        drop_last=program.drop_last,
        origin=origin,
    )
    return ReadBatches(samples_of(program, program.data, source, order), source, job)


def evaluation_batches(
    program: TrainingProgram, source: ModelSource, job: Job
) -> tuple[ReadBatches, int]:
    """The batches of an evaluation, in the order of the data, and how many there are.

    Raises:
        HeterpsError: The data set has no length.
    """
    data = program.evaluation_data
    if not hasattr(data, "__len__"):
        raise HeterpsError("evaluation_data: needs a length (__len__), and samples by index")
    order = SampleOrder(len(data), job.global_batch_size, shuffle=False)
    batches = ReadBatches(samples_of(program, data, source, order), source, job)
    return batches, order.steps_per_epoch
