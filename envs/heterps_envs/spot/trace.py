"""Spot traces: when devices vanish and come back, and what they cost (docs/spot-traces.md).

    time_s,scope,name,event,count,price_usd_per_hour
    0,type,T4,price,,0.19
    1800,device,us-t4-3,lost,,
    2400,node,eu-v100-node,lost,,
    4000,node,eu-v100-node,back,2,
    7200,type,T4,available,6,
    86400,trace,,end,,

One row is one event. Devices keep their names, so that a trace belongs to a cluster; where a row
counts devices instead of naming them, the last ones of the cluster's order go first.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from heterps_configs.documents.numbers import MOST_SECONDS
from heterps_configs.documents.yaml_files import read_text, write_text
from heterps_configs.errors import DocumentError
from heterps_configs.units import CONTROL

Scope = Literal["device", "node", "type", "trace"]
SpotEventKind = Literal["lost", "back", "available", "price", "end"]

REQUIRED = ("time_s", "scope", "name", "event")
COLUMNS = (*REQUIRED, "count", "price_usd_per_hour")


# Digits of a count: a cluster has thousands of devices.
_LONGEST_COUNT = 9
# As programs write numbers; Python would also read 1_0, nan and the digits of other scripts.
_PLAIN_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


@dataclass(frozen=True)
class SpotEvent:
    """One row.

    Attributes:
        time_s: Seconds from the beginning of the trace.
        scope: What `name` names; `trace` for the row that ends it.
        event: `available` sets the number of devices of a node or type; `price` changes a price
            only.
        count: Of devices of a node or type; None for all of them.
        price_usd_per_hour: Of one device, from now on; None where it stays.
        line: In the file, from 1; 0 where there is none.
    """

    time_s: float
    scope: Scope
    name: str
    event: SpotEventKind
    count: int | None = None
    price_usd_per_hour: float | None = None
    line: int = 0


class SpotTrace(NamedTuple):
    """Events in the order of their times.

    Attributes:
        duration_s: The time of the row `end`; without one, of the last event.
        source: What error messages call it.
    """

    events: tuple[SpotEvent, ...]
    duration_s: float
    source: str = "<memory>"


def read_spot_trace(path: str | Path) -> SpotTrace:
    """Reads a CSV file; empty lines and lines that begin with # are left out.

    Raises:
        DocumentError: With every problem of the file, by line and column.
        HeterpsError: The file cannot be read.
    """
    return parse_spot_trace(read_text(Path(path), str(path)), str(path))


def parse_spot_trace(text: str, source: str = "<memory>") -> SpotTrace:
    """The trace that a CSV text holds.

    Raises:
        DocumentError: With every problem, by line and column.
    """
    rows = _rows(text, source)
    _, header = next(rows, (0, []))
    header = [name.strip() for name in header]
    missing = [name for name in REQUIRED if name not in header]
    unknown = [name for name in header if name not in COLUMNS]
    if missing or unknown or len(set(header)) < len(header):
        found = ", ".join(header) or "nothing"
        raise DocumentError(
            source,
            [f"the first line must name the columns {', '.join(COLUMNS)} (the last two may be "
             f"missing); found: {found}"],
        )  # fmt: skip
    events, problems = [], []
    for line, cells in rows:
        if len(cells) > len(header):
            problems.append(f"line {line}: has {len(cells)} cells for {len(header)} columns")
            continue
        row = dict.fromkeys(COLUMNS, "")
        row.update(zip(header, (cell.strip() for cell in cells), strict=False))
        wrong = list(_problems_of_row(row))
        problems.extend(f"line {line}, {text}" for text in wrong)
        if not wrong:
            events.append(_event(row, line))
    problems.extend(_problems_of_order(events))
    if not events and not problems:
        problems.append("has no events")
    if problems:
        raise DocumentError(source, problems)
    return SpotTrace(tuple(e for e in events if e.event != "end"), events[-1].time_s, source)


def _rows(text: str, source: str) -> Iterator[tuple[int, list[str]]]:
    """Number and cells of every line that says something."""
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), start=1):
        line = line.removesuffix("\r")
        if line.strip() and not line.lstrip().startswith("#"):
            if CONTROL.search(line.replace("\t", " ")):
                raise DocumentError(source, [f"line {number}: must have no control characters"])
            try:
                yield number, next(csv.reader([line]), [])
            except csv.Error as error:
                raise DocumentError(source, [f"line {number}: {error}"]) from None


def _problems_of_row(row: Mapping[str, str]) -> Iterator[str]:
    scope, event = row["scope"], row["event"]
    if _number(row["time_s"]) is None:
        yield f"time_s: must be a number of seconds, 0 to {MOST_SECONDS:g}, got {row['time_s']!r}"
    for column, value, allowed in (
        ("scope", scope, get_args(Scope)),
        ("event", event, get_args(SpotEventKind)),
    ):
        if value not in allowed:
            yield f"{column}: must be one of {', '.join(allowed)}, got {value!r}"
    if (scope == "trace") != (event == "end"):
        yield "event: 'end' and the scope 'trace' belong together"
    if scope != "trace" and not row["name"]:
        yield f"name: is missing; expected the name of a {scope}"
    yield from _problems_of_values(row)


def _problems_of_values(row: Mapping[str, str]) -> Iterator[str]:
    scope, event, count = row["scope"], row["event"], row["count"]
    price = row["price_usd_per_hour"]
    if count and not (count.isascii() and count.isdecimal() and len(count) <= _LONGEST_COUNT):
        yield f"count: must be a whole number of devices, got {count!r}"
    elif count and (scope not in ("node", "type") or event in ("price", "end")):
        yield "count: belongs to the events lost, back and available of a node or type only"
    elif event == "available" and (not count or scope not in ("node", "type")):
        yield "count: the event 'available' needs the number of devices of a node or type"
    if price and (_number(price) is None or event == "end"):
        yield (
            f"price_usd_per_hour: must be a number, 0 to {MOST_SECONDS:g}, of an event, "
            f"got {price!r}"
        )
    elif event == "price" and not price:
        yield "price_usd_per_hour: is missing; the event 'price' needs it"


def _number(text: str) -> float | None:
    """A number from 0 to `MOST_SECONDS`, which is far above any price too; None for all else."""
    value = float(text) if _PLAIN_NUMBER.fullmatch(text) else -1.0
    return value if 0 <= value <= MOST_SECONDS else None


def _event(row: Mapping[str, str], line: int) -> SpotEvent:
    scope: Scope = next(name for name in get_args(Scope) if name == row["scope"])
    event: SpotEventKind = next(name for name in get_args(SpotEventKind) if name == row["event"])
    count, price = row["count"], row["price_usd_per_hour"]
    return SpotEvent(
        time_s=float(row["time_s"]),
        scope=scope,
        name=row["name"],
        event=event,
        count=int(count) if count else None,
        price_usd_per_hour=float(price) if price else None,
        line=line,
    )


def _problems_of_order(events: Sequence[SpotEvent]) -> Iterator[str]:
    for before, event in pairwise(events):
        if event.time_s < before.time_s:
            yield (
                f"line {event.line}, time_s: {event.time_s:g} lies before {before.time_s:g} of "
                f"line {before.line}; rows stand in the order of their times"
            )
        if before.event == "end":
            yield f"line {event.line}: stands after the row 'end' of line {before.line}"


def spot_trace_text(trace: SpotTrace, comments: Iterable[str] = ()) -> str:
    """A trace as CSV.

    Args:
        trace: What is written.
        comments: Lines above the header.
    """
    file = io.StringIO()
    file.writelines(f"# {line}\n" for line in comments)
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    for event in trace.events:
        price = event.price_usd_per_hour
        writer.writerow(
            (
                _plain(event.time_s),
                event.scope,
                event.name,
                event.event,
                "" if event.count is None else event.count,
                "" if price is None else _plain(price),
            )
        )
    writer.writerow((_plain(trace.duration_s), "trace", "", "end", "", ""))
    return file.getvalue()


def _plain(value: float) -> str:
    """A number that reads back as itself."""
    return str(int(value)) if float(value).is_integer() else repr(value)


def write_spot_trace(trace: SpotTrace, path: str | Path, comments: Iterable[str] = ()) -> None:
    """Writes a CSV file in one move.

    Raises:
        HeterpsError: The file cannot be written.
    """
    write_text(path, spot_trace_text(trace, comments))
