"""What `heterps list links` and `heterps list devices --detail` show: hardware, with sources."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from heterps.reports.console import answer, percent_text, seconds_text
from heterps_configs.documents.device import DeviceType, shipped_device_types
from heterps_configs.documents.link_kinds import LinkKind, shipped_link_kinds
from heterps_envs.card_times.document import kin_of, shipped_calibration
from heterps_envs.layer_costs.estimated import is_card


def print_link_kinds() -> None:
    """One row for each kind, then what it is and where the numbers are from."""
    kinds = shipped_link_kinds().values()
    table = Table(title="links", title_justify="left", box=None, padding=(0, 1))
    for heading in ("kind", "latency", "one way", "nominal", "fit error"):
        table.add_column(heading, justify="left" if heading == "kind" else "right", no_wrap=True)
    for kind in kinds:
        nominal, error = kind.nominal_bandwidth_bytes_per_s, kind.fit_error()
        table.add_row(
            kind.name,
            seconds_text(kind.latency_s),
            _bandwidth_text(kind.bandwidth_bytes_per_s),
            "" if nominal is None else _bandwidth_text(nominal),
            "" if error is None else percent_text(error),
        )
    answer.print(table)
    answer.print(
        "one way: a message of n bytes takes latency + n / this; fit error: by how much the "
        "bandwidth of a measured message is off at worst; without one the numbers follow a rule"
    )
    for kind in kinds:
        answer.print(f"{kind.name}: {kind.description}. {kind.source}")


def print_device_details() -> None:
    """Everything that the catalogue says of each type, a paragraph for each."""
    for entry in shipped_device_types().values():
        answer.print(_heading(entry))
        table = Table(show_header=False, box=None, padding=(0, 2), pad_edge=True)
        for label, text in _details(entry).items():
            table.add_row(label, text)
        answer.print(table)


def link_kinds_data() -> dict[str, Any]:
    """By name: the fields, and how far the fit is off."""
    return {
        name: {**kind.to_mapping(), "fit_error": kind.fit_error()}
        for name, kind in shipped_link_kinds().items()
    }


def device_details_data() -> dict[str, Any]:
    """By name: the fields, and what the type was calibrated on."""
    return {
        name: {**entry.to_mapping(), "calibrated_on": list(calibrated_on(entry))}
        for name, entry in shipped_device_types().items()
    }


def calibrated_on(entry: DeviceType) -> tuple[str, ...]:
    """Whose measurements correct the data sheet's peaks of a type."""
    calibration = shipped_calibration()
    knowledge = calibration.knowledge(entry)
    if not is_card(entry) or knowledge == "none":
        return ()
    if knowledge == "card":
        tables = calibration.cards[entry.name].tables
        return tuple(f"{count} tables of {repository}" for repository, count in tables.items())
    return (f"cards like it ({', '.join(_kin_measured(entry))})",)


def _kin_measured(entry: DeviceType) -> list[str]:
    types, kin = shipped_device_types(), kin_of(entry)
    return [name for name in shipped_calibration().cards if kin_of(types[name]) == kin]


def _heading(entry: DeviceType) -> str:
    made_by = " ".join(text for text in (entry.vendor, entry.architecture) if text != "other")
    return f"{entry.name}  {made_by or entry.kind}".rstrip()


def _details(entry: DeviceType) -> dict[str, str]:
    price = f"${entry.price_usd_per_hour:g}/h"
    dated = f" ({entry.price_date})" if entry.price_date else ""
    host = entry.host_bandwidth_bytes_per_s
    rows = {
        "memory": f"{entry.memory_bytes / 1e9:.0f} GB at "
        f"{_bandwidth_text(entry.memory_bandwidth_bytes_per_s)}"
        + ("" if host is None else f", host {_bandwidth_text(host)}"),
        "peaks": ", ".join(
            f"{dtype} {peak / 1e12:.4g}" for dtype, peak in entry.peak_flops_per_s.items()
        )
        + " TFLOP/s",
        "links": ", ".join(map(_link_text, entry.links)),
        "price": f"{price}{dated}: {entry.price_source}",
        "calibrated on": ", ".join(calibrated_on(entry)) or "nothing: peaks of the data sheet",
        "source": entry.specification_source,
    }
    if entry.emulation:
        rows["emulates"] = (
            f"{entry.emulation.host_device_type}, {entry.emulation.slowdown:g} times slower"
        )
    return {label: text for label, text in rows.items() if text}


def _link_text(name: str) -> str:
    kind: LinkKind = shipped_link_kinds()[name]
    return f"{name} ({_bandwidth_text(kind.bandwidth_bytes_per_s)})"


def _bandwidth_text(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:.4g} GB/s"
