"""What `heterps profile` prints: the model in one line, and a table for each measurement."""

from __future__ import annotations

from collections import Counter

from rich.console import Console
from rich.table import Table

from heterps.reports.console import seconds_text
from heterps_configs.documents.model_profile import Measurement, ModelProfile

MEGABYTE = 1e6
# Of layers that are several modules, how many are shown one by one.
MAX_JOINED_LINES = 12


def parameters_text(profile: ModelProfile) -> str:
    """How many parameters a model has, and how many of them are trained, where not all are."""
    trained = profile.num_trained_parameters
    rest = "" if trained == profile.num_parameters else f", {trained:,} of them trained"
    return f"{profile.num_parameters:,} parameters{rest}"


def print_profile(profile: ModelProfile, console: Console) -> None:
    """The model, then each measurement."""
    layers = profile.layers
    console.print(
        f"{profile.name}: {len(layers)} layers, {parameters_text(profile)}, "
        f"{sum(layer.forward_flops for layer in layers) / 1e9:.4g} GFLOP forward and "
        f"{sum(layer.backward_flops for layer in layers) / 1e9:.4g} backward for one sample"
    )
    print_joined(profile, console)
    for entry in profile.measurements:
        console.print(
            f"  {entry.device_type}, {entry.dtype}, micro-batch {entry.micro_batch_size}: forward "
            f"{seconds_text(sum(entry.forward_s))}, backward {seconds_text(sum(entry.backward_s))} "
            f"({entry.source}, {entry.date})"
        )
    # Equal tables of many old measurements would bury the newest.
    if profile.measurements and profile.measurements[-1].num_repeats:
        console.print(layer_table(profile, profile.measurements[-1]))


def print_joined(profile: ModelProfile, console: Console) -> None:
    """One line for each layer that is several modules: which, and why no cut lies between them."""
    joined = [layer for layer in profile.layers if layer.joined_because]
    for layer in joined[:MAX_JOINED_LINES]:
        reasons = "; ".join(dict.fromkeys(layer.joined_because))
        console.print(f"  one layer: {layer.name} ({reasons})", markup=False, soft_wrap=True)
    if len(joined) > MAX_JOINED_LINES:
        console.print(f"  and {len(joined) - MAX_JOINED_LINES} more layers of several modules")


def layer_table(profile: ModelProfile, entry: Measurement) -> Table:
    """One row for each distinct layer: how often it occurs, and what it takes."""
    table = Table(
        title=f"{entry.device_type}, {entry.dtype}, micro-batch {entry.micro_batch_size}: "
        f"medians of {entry.num_repeats} or more passes ± half the interquartile range"
    )
    table.add_column("layers")
    for name in ("count", "forward ms", "backward ms", "step ms", "saved MB"):
        table.add_column(name, justify="right", no_wrap=True)
    count = Counter(profile.first_equal_layers())
    for index in sorted(count):
        table.add_row(
            profile.layers[index].kind,
            str(count[index]),
            _milliseconds(entry.forward_s, entry.forward_spread_s, index),
            _milliseconds(entry.backward_s, entry.backward_spread_s, index),
            _milliseconds(entry.optimizer_s, (), index),
            f"{entry.activation_bytes[index] / MEGABYTE:.3g}" if entry.activation_bytes else "",
        )
    return table


def _milliseconds(seconds: tuple[float, ...], spread: tuple[float, ...], index: int) -> str:
    if not seconds:
        return ""
    text = f"{seconds[index] * 1e3:.3g}"
    return f"{text} ± {spread[index] * 500:.1g}" if spread else text
