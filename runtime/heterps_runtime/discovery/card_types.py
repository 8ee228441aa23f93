"""Which device type a card is: by the model, form and memory in its name, against the catalogue.

The catalogue's names are read in the same way, `A100-80G-PCIe` as a model, a memory and a form: a
new row is found without a line here.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from heterps_configs.documents.device import DeviceType

Form = Literal["SXM", "PCIe", "NVL", ""]

# What tools and data sheets write of a card that is no part of its model.
_LEFT_OUT = re.compile(
    r"\b(nvidia|amd|tesla|quadro|geforce|radeon|instinct|graphics|gpu|generation|blackwell|server"
    r"|workstation|edition|accelerator|hbm[0-9]e?|oam|mcm|gcd|ac|mba)\b",
    re.IGNORECASE,
)
_MEMORY = re.compile(r"^[0-9]+(?:\.[0-9]+)?(?:g|gb|gib)$", re.IGNORECASE)
_FORMS: tuple[tuple[Form, re.Pattern[str]], ...] = (
    ("NVL", re.compile(r"\bnvl\b", re.IGNORECASE)),
    ("PCIe", re.compile(r"\bpcie\b", re.IGNORECASE)),
    ("SXM", re.compile(r"\bsxm[0-9]?\b", re.IGNORECASE)),
    # Of Hopper only the SXM form has HBM3 in its name.
    ("SXM", re.compile(r"\bH[12]00\b.*\bHBM3e?\b")),
)
_FORM_WORD = re.compile(r"^(?:nvl|pcie|sxm[0-9]?)$", re.IGNORECASE)
# Cards report up to 8 % more than the catalogue's nominal sizes; with ECC on ordinary memory less.
_LEAST_RATIO, _MOST_RATIO = 0.92, 1.10
# Of cards that nobody knows, names tell more than sizes.
_MEMORY_WEIGHT = 0.3
_EQUALLY_NEAR = 0.1
# What the CUDA context and the libraries leave of what a card reports, at the least.
USABLE_SHARE = 0.95


@dataclass(frozen=True)
class Match:
    """What the catalogue has for a card.

    Attributes:
        type: The row, or the nearest one.
        is_exact: The card is one of these.
        why_not: What differs, where it is not.
    """

    type: DeviceType
    is_exact: bool
    why_not: str = ""


@dataclass(frozen=True)
class _Read:
    model: str
    form: Form


def match_card(name: str, memory_bytes: int | None, types: Mapping[str, DeviceType]) -> Match:
    """The device type of a card, or the nearest.

    Args:
        name: As its tool calls it.
        memory_bytes: As its tool reports; None: not said.
        types: The catalogue.
    """
    card = _read(name)
    rows = [row for row in types.values() if row.kind == "gpu" and row.emulation is None]
    same_model = [row for row in rows if _read(row.name).model == card.model]
    fitting = [row for row in same_model if _holds_as_much(row, memory_bytes)]
    if memory_bytes is None and len({row.memory_bytes for row in fitting}) > 1:
        return Match(fitting[0], False, "its memory is not reported")
    for form in _forms_that_fit(card.form, fitting):
        return Match(next(row for row in fitting if _form_of(row) == form), True)
    if fitting:
        return Match(fitting[0], False, f"it is of another form, {card.form}")
    if same_model:
        nearest = min(same_model, key=lambda row: _memory_distance(row, memory_bytes))
        return Match(nearest, False, "it has another memory")
    return Match(_nearest(rows, card.model, memory_bytes), False, "no type has its name")


def _read(name: str) -> _Read:
    form: Form = next((form for form, pattern in _FORMS if pattern.search(name)), "")
    words = re.split(r"[\s\-_/()]+", _LEFT_OUT.sub(" ", name))
    model = [word for word in words if not _MEMORY.match(word) and not _FORM_WORD.match(word)]
    return _Read("".join(model).casefold(), form)


def _form_of(row: DeviceType) -> Form:
    """Of its name; else of what it was taken from."""
    return _read(row.name).form or _read(row.specification_source).form


def _forms_that_fit(form: Form, rows: Iterable[DeviceType]) -> Iterable[Form]:
    """Forms of rows that a card may be, the best first.

    A card whose name has none is of any form, first of none; a row of no form holds any card.
    """
    there = [_form_of(row) for row in rows]
    wanted: list[Form] = [form, ""] if form else ["", "SXM", "PCIe", "NVL"]
    return [entry for entry in wanted if entry in there]


def _holds_as_much(row: DeviceType, memory_bytes: int | None) -> bool:
    return memory_bytes is None or (_LEAST_RATIO <= memory_bytes / row.memory_bytes <= _MOST_RATIO)


def _memory_distance(row: DeviceType, memory_bytes: int | None) -> float:
    return abs(math.log((memory_bytes or row.memory_bytes) / row.memory_bytes))


def _nearest(rows: Sequence[DeviceType], model: str, memory_bytes: int | None) -> DeviceType:
    """Of those that are about equally near the slowest: better too little than too much."""
    likeness = {row.name: _likeness(row, model, memory_bytes) for row in rows}
    least = max(likeness.values()) - _EQUALLY_NEAR
    near = [row for row in rows if likeness[row.name] >= least]
    return min(near, key=lambda row: row.peak("float32"))


def _likeness(row: DeviceType, model: str, memory_bytes: int | None) -> float:
    """How near a row is by its name, and by its memory."""
    names = difflib.SequenceMatcher(a=_read(row.name).model, b=model, autojunk=False).ratio()
    return names - _MEMORY_WEIGHT * _memory_distance(row, memory_bytes)
