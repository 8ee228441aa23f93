"""From what a user types to a problem: MODEL, cluster and job options become documents."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from heterps.planning.strategies import strategy_of
from heterps_configs.arguments import check_type, check_whole
from heterps_configs.documents.base import Dtype
from heterps_configs.documents.cluster import Cluster
from heterps_configs.documents.job import Job, Strategy, with_a_size
from heterps_configs.errors import HeterpsError
from heterps_configs.library import load_cluster, load_job_fields

if TYPE_CHECKING:
    from torch import nn

    from heterps.planning.modules import Example
    from heterps_configs.documents.model_profile import ModelProfile
    from heterps_envs.problem import Problem
    from heterps_runtime.own_loop.model import Inputs

# What messages say is allowed.
_SOME_INPUTS = "texts such as x=3,32,32:float32"
# What messages call fields of a job beside those of a file.
JOB_OPTIONS = "job options"
A_PROBLEM = "a Problem, as heterps.load_problem(model, cluster) makes it"


def load_model(
    reference: str,
    inputs: Sequence[str] = (),
    sequence_length: int | None = None,
    dtype: Dtype | None = None,
) -> ModelProfile:
    """The profile that MODEL stands for.

    Args:
        reference: Shipped name, profile file, Hugging Face config, or `package.module:factory`.
        inputs: `name=shape:dtype` for each input; a saved model is traced again for others.
        sequence_length: Tokens of one sample, for a language model.
        dtype: What a model is traced in; None for the usual one.

    Raises:
        HeterpsError: Nothing of that name, a broken file, or a factory that fails.
    """
    from heterps_runtime.profiling.model_source import resolve_profile

    return resolve_profile(reference, tuple(inputs), sequence_length=sequence_length, dtype=dtype)


def is_traced(reference: str) -> bool:
    """Whether MODEL has to be traced first: it is neither a shipped name nor a profile file."""
    from heterps_runtime.profiling.model_source import is_factory, is_huggingface

    return is_factory(reference) or is_huggingface(reference)


def needs_file(reference: str, profile: ModelProfile) -> bool:
    """Whether MODEL alone does not lead to the profile: it was traced for this call."""
    return is_traced(reference) or load_model(reference) != profile


def make_job(
    profile: ModelProfile,
    job_file: str | None = None,
    *,
    is_size_open: bool = False,
    **options: Any,
) -> Job:
    """The job of a file, overridden by options.

    Args:
        profile: Its dtype is the default dtype.
        job_file: A job document; without one the defaults of `Job` hold.
        is_size_open: The size of micro-batches is chosen later: one too small for the batch becomes
            the smallest that a step can have.
        options: Fields of `Job`; None means not given.

    Raises:
        DocumentError: With every problem, one line each.
    """
    base = load_job_fields(job_file) if job_file else {"dtype": profile.dtype}
    given = {name: value for name, value in options.items() if value is not None}
    fields = {**base, **given}
    # The file alone has been checked: what is wrong now, an option has brought.
    return Job.from_mapping(with_a_size(fields) if is_size_open else fields, JOB_OPTIONS)


def load_problem(
    model: str | os.PathLike[str] | nn.Module | Callable[[], nn.Module],
    cluster: str | os.PathLike[str] | Cluster,
    *,
    example: Inputs | Example | None = None,
    job_file: str | os.PathLike[str] | None = None,
    inputs: Sequence[str] = (),
    sequence_length: int | None = None,
    trust_code: bool = False,
    strategy: Strategy | None = None,
    **job_options: Any,
) -> Problem:
    """A problem from references, as the commands make it.

    Args:
        model: MODEL, see `load_model`; or a `torch.nn.Module`, or a function that returns one.
        cluster: Shipped name, cluster file, or a `Cluster`.
        example: For a module: a batch of what its `forward` takes (a tensor, several, or a mapping
            by name); or an `Example`, which has the target as well. Nothing is computed.
        job_file: A job document.
        inputs: See `load_model`; a single one may stand alone.
        sequence_length: See `load_model`.
        trust_code: Code that a profile file names may run in this process (it is not run here).
        strategy: What planners may choose beside devices, cuts and replicas; None: what the command
            `place` leaves open (`heterps.planning.strategies.OPEN`); `Strategy()`: nothing.
        job_options: Fields of `Job` that override the file; a `micro_batch_size` is kept, and none
            is chosen.

    Raises:
        HeterpsError: With one clear message.
    """
    from heterps_envs.problem import Problem
    from heterps_runtime.models.trust import trust_source

    model = os.fspath(model) if isinstance(model, os.PathLike) else model
    cluster = os.fspath(cluster) if isinstance(cluster, os.PathLike) else cluster
    job_file = os.fspath(job_file) if isinstance(job_file, os.PathLike) else job_file
    _check_arguments(cluster, job_file, sequence_length, strategy, inputs)
    document = cluster if isinstance(cluster, Cluster) else load_cluster(cluster)
    mixed: Dtype = "mixed-bfloat16"
    wanted = _wanted_dtype(job_file, job_options)
    if isinstance(model, str):
        inputs = (inputs,) if isinstance(inputs, str) else inputs
        if example is not None:
            raise HeterpsError(f"{model}: an example is for a module; use inputs=[...]")
        profile = load_model(model, inputs, sequence_length, wanted)
    else:
        from heterps.planning.modules import module_profile

        if inputs or sequence_length is not None:
            raise HeterpsError("a module takes an example, not inputs or sequence_length")
        profile = module_profile(model, example, wanted)
        model = profile.name
    if trust_code:
        trust_source(profile.source)
    chosen = _chosen(strategy, job_file, job_options)
    job = make_job(profile, job_file, is_size_open=chosen.chooses_micro_batch, **job_options)
    if job.dtype == mixed != profile.dtype:
        warnings.warn(
            f"{model}: its bytes are for {profile.dtype}; for {mixed} they are an upper limit",
            stacklevel=2,
        )
    return Problem(
        profile=profile,
        cluster=document,
        job=job,
        model_reference=model,
        cluster_reference=cluster if isinstance(cluster, str) else document.name,
        strategy=chosen,
    )


def _check_arguments(
    cluster: object, job_file: object, sequence_length: object, strategy: object, inputs: object
) -> None:
    """Refuses what no document checks."""
    check_type("cluster", cluster, (str, Cluster), "a name, a file, or a heterps Cluster")
    if job_file is not None:
        check_type("job_file", job_file, str, "a file, or None")
    if sequence_length is not None:
        check_whole("sequence_length", sequence_length, "a whole number from 1 on, or None")
    if strategy is not None:
        check_type("strategy", strategy, Strategy, "a heterps.Strategy, or None")
    check_type("inputs", inputs, (str, Sequence), _SOME_INPUTS)
    for each in (inputs,) if isinstance(inputs, str) else cast("Sequence[object]", inputs):
        check_type("inputs", each, str, _SOME_INPUTS)


def _wanted_dtype(job_file: str | None, options: Mapping[str, Any]) -> Dtype | None:
    """What options or a job file say; None where neither does."""
    if options.get("dtype") is not None:
        return Job.from_mapping({"dtype": options["dtype"]}, JOB_OPTIONS).dtype
    default = Job().dtype
    return load_job_fields(job_file).get("dtype", default) if job_file else None


def _chosen(
    strategy: Strategy | None, job_file: str | None, options: Mapping[str, Any]
) -> Strategy:
    """What planners may choose; a size of micro-batches that an option names is kept."""
    chosen = strategy_of(job_file=job_file) if strategy is None else strategy
    is_named = options.get("micro_batch_size") is not None
    return chosen.changed(chooses_micro_batch=False) if is_named else chosen
