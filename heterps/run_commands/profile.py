"""`heterps profile`: trace a model, time its layers on a device, merge profiles."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, cast, get_args

from heterps.planning.problems import is_traced, load_model
from heterps.planning.trust import ask_for_trust
from heterps.reports.console import answer, print_json, remarks
from heterps.reports.profile_tables import print_layers, print_profile
from heterps.reports.run_progress import shown_progress
from heterps_configs.documents.base import Dtype
from heterps_configs.documents.device import device_type_named
from heterps_configs.documents.job import Optimizer
from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.documents.numbers import MOST_COUNT
from heterps_configs.errors import HeterpsError, UnknownNameError
from heterps_configs.library import load_profile
from heterps_configs.outputs import DOCUMENT_SUFFIXES, try_outputs
from heterps_configs.units import bytes_text
from heterps_runtime.profiling.merged_profiles import merge_profiles
from heterps_runtime.specification.machine import available_memory_bytes

HOST_TYPE = "host-cpu"


def check_arguments(
    models: Sequence[str],
    measuring: Mapping[str, object],
    *,
    links: bool,
    merge: bool,
    cluster: str | None,
    count: int | None,
) -> None:
    """Refuses arguments that do not go together.

    Args:
        models: The arguments.
        measuring: Options that only measuring a model takes.
        links: Whether links are measured.
        merge: Whether profiles are merged.
        cluster: `--cluster`.
        count: `--processes`.

    Raises:
        HeterpsError: With one clear message.
    """
    if links and merge:
        raise HeterpsError("--links and --merge do not go together")
    if links and models:
        raise HeterpsError(f"--links measures this machine and takes no MODEL, got {models[0]!r}")
    if not links and (cluster is not None or count is not None):
        name = "--cluster" if cluster is not None else "--processes"
        raise HeterpsError(f"{name} belongs to --links")
    if links or merge:
        for name, value in measuring.items():
            if value is not None:
                raise HeterpsError(f"{name} does not go with {'--links' if links else '--merge'}")
    if merge and len(models) < 2:
        raise HeterpsError("--merge needs at least two profile files")
    if not (links or merge) and len(models) != 1:
        raise HeterpsError(f"expected one MODEL, got {len(models)} (--merge takes several)")


class ModelRequest(NamedTuple):
    """The model that is profiled.

    Attributes:
        reference: MODEL, see `heterps.planning.problems.load_model`.
        inputs: Of a model that is traced.
        sequence_length: The same.
        dtype: It is traced and measured in; None: the usual one.
    """

    reference: str
    inputs: Sequence[str] = ()
    sequence_length: int | None = None
    dtype: str | None = None


class Measurements(NamedTuple):
    """What is measured of its layers.

    Attributes:
        device: As torch names it; None: nothing is measured.
        device_type: That the times are filed under; None: this machine's processor.
        micro_batches: Sizes, with commas between.
        optimizer: None: the usual one.
    """

    device: str | None = None
    device_type: str | None = None
    micro_batches: str = "1,2,4"
    optimizer: str | None = None


def run_profile(
    asked: ModelRequest,
    measured: Measurements,
    *,
    output: Path | None,
    trusts_code: bool,
    as_json: bool,
    explains_layers: bool = False,
) -> None:
    """Traces, measures where a device is named, writes, prints.

    Args:
        asked: The model.
        measured: Of its layers.
        output: The profile.
        trusts_code: Code that a profile file names may run.
        as_json: Print JSON.
        explains_layers: Print every layer.
    """
    try_outputs({"--output": (output, DOCUMENT_SUFFIXES)})
    model, device, dtype = asked.reference, measured.device, asked.dtype
    sizes = _parse_sizes(measured.micro_batches)
    device_type = _type_of(measured, None if is_traced(model) else dtype)
    wanted = None if dtype is None else _one_of("dtype", dtype, get_args(Dtype))
    profile = load_model(model, asked.inputs, asked.sequence_length, cast("Dtype | None", wanted))
    if device is None and measured.micro_batches != Measurements().micro_batches:
        text = "--micro-batch is ignored: nothing is measured without --device"
        warnings.warn(text, stacklevel=1)
    if device is not None:
        assert device_type is not None
        _check_memory(profile, sizes[-1], device)
        ask_for_trust(
            profile.source,
            f"{model}: this profile",
            is_trusted=trusts_code,
            say=lambda text: remarks.print(text, soft_wrap=True),
        )
        profile = measure_with_progress(
            profile,
            device=device,
            device_type=device_type,
            micro_batch_sizes=sizes,
            dtype=cast(Dtype, wanted or profile.dtype),
            optimizer=cast(
                Optimizer, _one_of("optimizer", measured.optimizer or "adamw", get_args(Optimizer))
            ),
            partial=None if output is None else output.with_name(f"{output.name}.partial"),
        )
    if not explains_layers:
        _write_and_print(profile, output, as_json)
        return
    ask_for_trust(
        profile.source,
        f"{model}: this profile",
        is_trusted=trusts_code,
        say=lambda text: remarks.print(text, soft_wrap=True),
    )
    why = _why_whole(profile)
    _write_and_print(profile, output, as_json)
    if not as_json:
        print_layers(profile, why, answer)


def _type_of(measured: Measurements, dtype: str | None) -> str | None:
    """What times are filed under; None: nothing is measured.

    Args:
        measured: As it was asked for.
        dtype: The one that was asked for, where only measuring takes one.

    Raises:
        HeterpsError: What only measuring takes, without a device; or a device of unknown type.
    """
    device, device_type = measured.device, measured.device_type
    if device is None:
        for name, value in {"device-type": device_type, "dtype": dtype}.items():
            if value is not None:
                raise HeterpsError(f"--{name} needs --device: without it nothing is measured")
        return None
    if device_type is not None:
        _warn_of_unknown_type(device_type)
        return device_type
    if device != "cpu":
        raise HeterpsError(
            f"--device {device} needs --device-type: the name that clusters know it by, "
            "such as A100-40G"
        )
    return HOST_TYPE


def _why_whole(profile: ModelProfile) -> dict[str, list[str]]:
    """By layer, what groups of a run cannot do with it: split it, or only its samples."""
    from heterps_runtime.tensor_parallel.by_batch import find_batch_calls
    from heterps_runtime.tensor_parallel.plan import find_splits

    if profile.source is None:
        return {}
    found: dict[str, list[str]] = {}
    splits = find_splits(profile.source, profile.dtype)
    for what, reasons in (
        ("a group keeps it whole", splits.reasons),
        ("a key/value head stays on one device, with its queries", splits.not_shared),
        (
            "a group cannot split it by batch",
            find_batch_calls(profile.source, profile.dtype).reasons,
        ),
    ):
        for name, reason in reasons.items():
            found.setdefault(name, []).append(f"{what}: {reason.removeprefix(f'{name}: ')}")
    return found


def _warn_of_unknown_type(name: str) -> None:
    """A type of one's own is allowed; a misspelt one would never be found again."""
    try:
        device_type_named(name)
    except UnknownNameError as error:
        warnings.warn(
            f"--device-type: {error}; a cluster that uses these times has to define it under "
            "device_types",
            stacklevel=2,
        )


def run_merge(files: Sequence[str], *, output: Path | None, as_json: bool) -> None:
    """Merges profile files; says which measurements were left out."""
    try_outputs({"--output": (output, DOCUMENT_SUFFIXES)})
    merged, left_out = merge_profiles([(file, load_profile(file)) for file in files])
    for line in left_out:
        remarks.print(line)
    _write_and_print(merged, output, as_json)


def _write_and_print(profile: ModelProfile, output: Path | None, as_json: bool) -> None:
    try:
        if output is not None:
            profile.to_file(output)
            remarks.print(f"profile written to {output}")
    finally:
        if as_json:
            print_json(profile.model_dump(mode="json"))
        else:
            print_profile(profile, answer)


def measure_with_progress(
    profile: ModelProfile,
    *,
    device: str,
    device_type: str,
    micro_batch_sizes: Sequence[int],
    dtype: Dtype,
    optimizer: Optimizer = "adamw",
    partial: Path | None = None,
) -> ModelProfile:
    """`heterps_runtime.profiling.profiler.measure` with a progress bar on stderr."""
    with shown_progress("profile", "building the model") as show:
        from heterps_runtime.profiling.profiler import Conditions, measure

        try:
            conditions = Conditions(dtype, optimizer, device)
            return measure(
                profile, device_type, micro_batch_sizes, conditions, partial=partial, progress=show
            )
        except KeyboardInterrupt:
            if partial is not None and partial.exists():
                remarks.print(f"measured so far: {partial}; the same command goes on from there")
            raise


def _one_of(name: str, value: str, allowed: Sequence[str]) -> str:
    if value not in allowed:
        raise HeterpsError(f"--{name} {value!r}: allowed are {', '.join(allowed)}")
    return value


def _parse_sizes(text: str) -> tuple[int, ...]:
    try:
        sizes = tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        sizes = ()
    if not sizes or sizes[0] < 1:
        raise HeterpsError(f"--micro-batch {text!r}: expected whole numbers above 0, such as 1,2,4")
    if sizes[-1] > MOST_COUNT:
        raise HeterpsError(f"--micro-batch {text!r}: at most {MOST_COUNT} samples are measured")
    return sizes


def _check_memory(profile: ModelProfile, samples: int, device: str) -> None:
    """Refuses micro-batches that this machine cannot hold, before any is made.

    Raises:
        HeterpsError: With what the largest layer takes, and what there is.
    """
    if device != "cpu":
        return
    needed = samples * max(layer.activation_bytes + layer.output_bytes for layer in profile.layers)
    there = available_memory_bytes()
    if needed > there:
        raise HeterpsError(
            f"--micro-batch {samples}: a layer of {profile.name} takes {bytes_text(needed)} for "
            f"so many samples; this machine has {bytes_text(there)} left"
        )
