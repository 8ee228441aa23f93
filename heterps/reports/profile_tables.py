"""What `heterps profile` prints: the model in one line, and a table for each measurement."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from rich.console import Console
from rich.table import Table

from heterps.reports.console import seconds_text
from heterps_configs.documents.model.measurement import Measurement
from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.units import bytes_text

MEGABYTE = 1e6
# Of layers that are several modules, how many are shown one by one.
MAX_JOINED_LINES = 12
# Share of a layer's seconds that launching it takes, from which on the GPU waits for its host.
WAITS = 0.9
# Characters of a layer's classes in a table.
MAX_KIND = 16


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
    for entry in profile.measurements:
        if (text := host_limit_text(entry)) is not None:
            console.print(f"  {text}", markup=False, soft_wrap=True)


def print_layers(
    profile: ModelProfile, why_whole: Mapping[str, Sequence[str]], console: Console
) -> None:
    """Every layer, equal neighbours in one row; what each computes; why some stay whole or joined.

    Args:
        profile: Of one sample, in its dtype.
        why_whole: By layer, why groups of a run cannot split it, or its samples.
        console: Where to.
    """
    all_trained = profile.num_trained_parameters == profile.num_parameters
    table = Table(title="Layers, of one sample", title_justify="left", box=None)
    table.add_column("layers", no_wrap=True)
    table.add_column("kind", overflow="ellipsis", max_width=MAX_KIND)
    for name in ("weights", *(() if all_trained else ("trained",)), "FLOPs", "keeps", "sends"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("groups split", no_wrap=True)
    for first, last in _runs(profile):
        layer = profile.layers[first]
        sent = sorted({each.output_bytes for each in profile.layers[first : last + 1]})
        split = layer.tensor_split
        table.add_row(
            str(first) if first == last else f"{first}-{last}",
            layer.kind,
            _short(layer.num_parameters),
            *(() if all_trained else (_short(layer.trained_parameters),)),
            _short(layer.forward_flops + layer.backward_flops),
            bytes_text(layer.activation_bytes + layer.shared_bytes),
            ("up to " if len(sent) > 1 else "") + bytes_text(sent[-1]),
            "-" if split is None else f"{_short(split.num_units)} {split.unit}",
        )
    console.print(table)
    _print_products(profile, console)
    if sum(bool(layer.joined_because) for layer in profile.layers) > MAX_JOINED_LINES:
        print_joined(profile, console, most=profile.num_layers)
    alike: dict[str, list[str]] = {}
    for name, reasons in why_whole.items():
        for reason in reasons:
            alike.setdefault(reason, []).append(name)
    for reason, (first_name, *others) in alike.items():
        more = f" and {len(others)} more" if others else ""
        console.print(f"  {first_name}{more}: {reason}", markup=False, soft_wrap=True)


def _print_products(profile: ModelProfile, console: Console) -> None:
    """Kernels and matrix products of layers, those that compute the same in one line."""
    alike: dict[str, list[str]] = {}
    for first, last in _runs(profile):
        layer = profile.layers[first]
        products = ", ".join(product.short_text for product in layer.matrix_products)
        kernels = f"{layer.num_kernels} kernel{'' if layer.num_kernels == 1 else 's'}"
        if layer.num_kernels or products:
            text = "; ".join(filter(None, (kernels if layer.num_kernels else "", products)))
            alike.setdefault(text, []).append(str(first) if first == last else f"{first}-{last}")
    if alike:
        console.print("Forward pass of one sample: kernels; products, rows x inner x columns")
    for text, found in alike.items():
        console.print(f"  {', '.join(found)}: {text}", markup=False, soft_wrap=True)


def _short(value: float) -> str:
    """Three digits and the thousands: 64 M."""
    for unit in ("", " k", " M", " G"):
        if abs(value) < 999.5:
            return f"{value:.3g}{unit}"
        value /= 1000
    return f"{value:.3g} T"


def _runs(profile: ModelProfile) -> Iterator[tuple[int, int]]:
    """First and last of neighbours that cost the same."""
    first = 0
    for _, group in groupby(profile.first_equal_layers()):
        stop = first + len(list(group))
        yield first, stop - 1
        first = stop


def print_joined(profile: ModelProfile, console: Console, most: int = MAX_JOINED_LINES) -> None:
    """One line for each layer that is several modules: which, and why no cut lies between them."""
    joined = [layer for layer in profile.layers if layer.joined_because]
    for layer in joined[:most]:
        reasons = "; ".join(dict.fromkeys(layer.joined_because))
        console.print(f"  one layer: {layer.name} ({reasons})", markup=False, soft_wrap=True)
    if len(joined) > most:
        console.print(f"  and {len(joined) - most} more layers of several modules")


def host_limit_text(entry: Measurement) -> str | None:
    """Says where a GPU waited for its host; None where it did not, or nothing is known of it.

    Such layers take what launching them takes. In a stage the device catches up with that while
    the host launches the next ones, so the step may take less than the sum of its layers.
    """
    pairs = list(zip(entry.launch_s, entry.forward_s, entry.backward_s, strict=False))
    waits = [launch >= WAITS * (ahead + back) for launch, ahead, back in pairs]
    if not any(waits):
        return None
    launched_s, taken_s = sum(entry.launch_s), sum(entry.forward_s) + sum(entry.backward_s)
    busy_s = sum(
        ahead + back for (_, ahead, back), wait in zip(pairs, waits, strict=True) if not wait
    )
    least_s = min(max(launched_s, busy_s), taken_s)
    return (
        f"the GPU waits for its host in {sum(waits)} of {len(waits)} layers at micro-batch "
        f"{entry.micro_batch_size}: both passes of the model take {taken_s * 1e3:.3g} ms layer by "
        f"layer and may take {least_s * 1e3:.3g} ms in one stage"
    )


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
