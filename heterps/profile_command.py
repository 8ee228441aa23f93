"""`heterps profile`: trace a model, and time its layers on a device."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from heterps.console import answer, print_json, remarks, seconds_text
from heterps.problems import load_model
from heterps_configs.document import Dtype
from heterps_configs.errors import HeterpsError
from heterps_configs.model_profile import ModelProfile


def run_profile(
    model: str,
    *,
    output: Path | None,
    device: str | None,
    device_type: str | None,
    micro_batches: str,
    inputs: list[str],
    sequence_length: int | None,
    as_json: bool,
) -> None:
    """Traces, measures where a device is named, writes, prints."""
    sizes = _parse_sizes(micro_batches)
    if device is None and device_type is not None:
        raise HeterpsError("--device-type needs --device: without it nothing is measured")
    if device is not None and device_type is None:
        if device != "cpu":
            raise HeterpsError(
                f"--device {device} needs --device-type: the name that clusters know it by, "
                "such as A100-40G"
            )
        device_type = "host-cpu"
    profile = load_model(model, inputs, sequence_length)
    if device is not None:
        assert device_type is not None
        profile = measure_with_progress(
            profile,
            device=device,
            device_type=device_type,
            micro_batch_sizes=sizes,
            dtype=profile.dtype,
        )
    if output is not None:
        profile.to_file(output)
        remarks.print(f"profile written to {output}")
    if as_json:
        print_json(profile.model_dump(mode="json"))
    else:
        _print_profile(profile)


def measure_with_progress(
    profile: ModelProfile,
    *,
    device: str,
    device_type: str,
    micro_batch_sizes: Sequence[int],
    dtype: Dtype,
) -> ModelProfile:
    """`heterps_runtime.profiler.measure` with a progress bar on stderr."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=remarks, transient=True) as progress:
        task = progress.add_task("profile: building the model", total=None)
        from heterps_runtime.profiler import measure

        def show(done: int, total: int, layer: str) -> None:
            progress.update(task, completed=done, total=total, description=f"profile {layer}")

        return measure(profile, device_type, micro_batch_sizes, dtype, device=device, progress=show)


def _parse_sizes(text: str) -> tuple[int, ...]:
    try:
        sizes = tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        sizes = ()
    if not sizes or sizes[0] < 1:
        raise HeterpsError(f"--micro-batch {text!r}: expected whole numbers above 0, such as 1,2,4")
    return sizes


def _print_profile(profile: ModelProfile) -> None:
    layers = profile.layers
    answer.print(
        f"{profile.name}: {len(layers)} layers, {profile.num_parameters:,} parameters, "
        f"{sum(layer.forward_flops for layer in layers) / 1e9:.4g} GFLOP forward and "
        f"{sum(layer.backward_flops for layer in layers) / 1e9:.4g} backward for one sample"
    )
    for entry in profile.measurements:
        answer.print(
            f"  {entry.device_type}, {entry.dtype}, micro-batch {entry.micro_batch_size}: forward "
            f"{seconds_text(sum(entry.forward_s))}, backward {seconds_text(sum(entry.backward_s))} "
            f"({entry.source}, {entry.date})"
        )
