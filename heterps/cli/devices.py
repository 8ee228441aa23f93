"""Options of `place` that say which devices may be used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from heterps.cli.options import finite
from heterps_configs.errors import HeterpsError

if TYPE_CHECKING:
    from heterps.renting.offer import Offer

DEVICES = "Which devices"

BudgetUsd = Annotated[
    float | None,
    typer.Option(
        "--budget-usd-per-hour",
        callback=finite,
        help="All devices of the plan may cost so much together; the best devices for it are "
        "sought. Without a limit of the search more is never slower.",
        rich_help_panel=DEVICES,
    ),
]
MaxDevices = Annotated[
    list[str] | None,
    typer.Option(
        "--max-devices",
        help="TYPE=N, such as A100-40G=8: at most so many of a type; repeatable.",
        rich_help_panel=DEVICES,
    ),
]
Regions = Annotated[
    list[str] | None,
    typer.Option(
        "--region",
        help="Only devices of this region; repeatable.",
        rich_help_panel=DEVICES,
    ),
]
Excluded = Annotated[
    list[str] | None,
    typer.Option(
        "--exclude",
        help="Not this device type, node or device; repeatable.",
        rich_help_panel=DEVICES,
    ),
]


def offer_of(
    usd_per_hour: float | None,
    max_devices: list[str] | None,
    regions: list[str] | None,
    exclude: list[str] | None,
) -> Offer:
    """What the options leave on offer.

    Raises:
        HeterpsError: A limit is no TYPE=N, negative, or the second one of its type.
    """
    from heterps.renting.offer import Offer

    most: dict[str, int] = {}
    for text in max_devices or ():
        name, sign, number = text.rpartition("=")
        if not sign or not name or not number.isdecimal():
            raise HeterpsError(f"--max-devices {text}: expected TYPE=N, such as A100-40G=8")
        if name in most:
            raise HeterpsError(f"--max-devices: {name} has two limits, {most[name]} and {number}")
        most[name] = int(number)
    return Offer(tuple(exclude or ()), tuple(regions or ()), most, usd_per_hour)
