"""Layers: where a model can be cut, and which tensors cross each cut.

A cut lies between two units; functions that are called between them may lie on either side, so that
as little as possible crosses. It is allowed where everything that crosses is an output of a call;
what no function of torch is known to compute stays on one side. Units between two cuts form one
layer. Where functions lie between two units, each of the two layers must compute products: a stage
of a norm or an activation alone would only wait.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

from heterps_configs.errors import HeterpsError
from heterps_runtime.models.recording import Call, Recording, UnitOutput, Use

# A layer of more units than this is named by its first and last one.
MAX_JOINED_NAMES = 8


@dataclass(frozen=True)
class Layer:
    """A run of calls that no plan may separate.

    Attributes:
        name: Names of its units, joined by `+`.
        kind: Classes of its units, joined by `+`.
        first_call, last_call: Numbers of its calls (inclusive).
        crossing: What crosses the cut behind it, in order of origin; empty for the last layer.
        parameters: Names of the parameters that it uses.
        reasons: For each pair of neighbours among its units, why there is no cut between them.
    """

    name: str
    kind: str
    first_call: int
    last_call: int
    crossing: tuple[UnitOutput, ...]
    parameters: frozenset[str]
    reasons: tuple[str, ...] = ()

    @property
    def calls(self) -> range:
        """Numbers of its calls."""
        return range(self.first_call, self.last_call + 1)


def layers_of(recording: Recording) -> tuple[Layer, ...]:
    """The finest division into layers.

    Raises:
        HeterpsError: The model calls no module at all.
    """
    calls = recording.calls
    if not calls:
        raise HeterpsError("the model calls no module that could be placed")
    flow = _Flow(recording)
    cuts, reasons = _cuts(flow)
    ends = [*cuts, len(calls) - 1]
    starts = [0, *(end + 1 for end in ends[:-1])]
    layers = []
    for first, last in zip(starts, ends, strict=True):
        part = calls[first : last + 1]
        units = [number for number in range(first, last + 1) if calls[number].function is None]
        layers.append(
            Layer(
                name=_joined([calls[number].name for number in units]),
                kind=_joined([calls[number].kind for number in units]),
                first_call=first,
                last_call=last,
                crossing=flow.crossing(last),
                parameters=frozenset().union(*(call.parameters for call in part)),
                reasons=tuple(reasons[unit] for unit in units[:-1]),
            )
        )
    return tuple(layers)


def unit_calls(recording: Recording, layer: Layer) -> list[Call]:
    """The calls of a layer that are units."""
    return [
        recording.calls[number]
        for number in layer.calls
        if recording.calls[number].function is None
    ]


class _Flow:
    """What is read when.

    Attributes:
        units: Numbers of the calls that are units.
    """

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.units = [i for i, call in enumerate(recording.calls) if call.function is None]
        self._shared = recording.shared_memory
        self._last_read: dict[UnitOutput, int] = {}
        # Calls after which no cut may lie, and why.
        self.forbidden: dict[int, str] = {}
        for reader, use in _uses(recording):
            for source in use.sources:
                self._last_read[source] = max(self._last_read.get(source, -1), reader)
            first, last = min(use.sources).call, max(use.sources).call
            if use.is_stale:
                for cut in range(first, reader):
                    self.forbidden[cut] = "a tensor is written into under two names"
            elif not use.is_identity:
                for cut in range(last, reader):
                    self.forbidden[cut] = f"{_some(recording.hidden)} lies between them"
        self._starting: dict[int, list[UnitOutput]] = {}
        for source in self._last_read:
            self._starting.setdefault(source.call, []).append(source)
        self._live = self._sweep()

    def crossing(self, cut: int) -> tuple[UnitOutput, ...]:
        """Outputs of calls up to `cut` that are read after it."""
        return self._live[cut]

    def num_bytes(self, cut: int) -> int:
        """Bytes that cross a cut."""
        specs = map(self.recording.spec, self.crossing(cut))
        return sum(prod(spec.shape) * spec.dtype.itemsize for spec in specs)

    def objection(self, cut: int) -> str | None:
        """Why no cut can lie after a call; None where one can."""
        if cut in self.forbidden:
            return self.forbidden[cut]
        crossing = self.crossing(cut)
        if not crossing:
            return "nothing goes from one to the other"
        for memory in self._shared:
            objects = {number for source, number in memory.objects if source in crossing}
            if len(objects) > 1 and memory.last_write > cut:
                return "a tensor is written into under two names"
        return None

    def _sweep(self) -> list[tuple[UnitOutput, ...]]:
        found: list[tuple[UnitOutput, ...]] = []
        live: list[UnitOutput] = []
        for cut in range(len(self.recording.calls)):
            live = [source for source in live if self._last_read[source] > cut]
            live += sorted(s for s in self._starting.get(cut, ()) if self._last_read[s] > cut)
            found.append(tuple(live))
        found[-1] = ()
        return found


def _cuts(flow: _Flow) -> tuple[list[int], dict[int, str]]:
    """The last calls of all layers but the last, and by unit why none lies between it and the next.

    Where the next unit reads what this one returned, or it continues the chain, a cut lies directly
    behind the unit; else as late as that makes less cross.
    """
    (plain, beside), cuts, reasons = _plain_cuts(flow), list[int](), dict[int, str]()
    segment: list[tuple[int, int | None, str]] = []
    for unit, following in pairwise(flow.units):
        if unit in beside:
            names = " and ".join(flow.recording.calls[call].name for call in (unit, following))
            segment.append((unit, None, f"{names} run side by side"))
            continue
        if unit in plain:
            _divide(flow, segment, unit, cuts, reasons)
            cuts.append(unit)
            segment = []
            continue
        places = [cut for cut in range(unit, following) if flow.objection(cut) is None]
        best = min(places, key=flow.num_bytes) if places else None
        segment.append((unit, best, (flow.objection(unit) or "") if best is None else ""))
    _divide(flow, segment, len(flow.recording.calls) - 1, cuts, reasons)
    return sorted(cuts), reasons


def _divide(
    flow: _Flow,
    segment: Sequence[tuple[int, int | None, str]],
    last: int,
    cuts: list[int],
    reasons: dict[int, str],
) -> None:
    """Cuts what lies between two plain cuts, so that each layer computes products."""
    calls = flow.recording.calls
    start = cuts[-1] + 1 if cuts else 0
    for unit, place, reason in segment:
        if place is None:
            reasons[unit] = reason
            continue
        sides = calls[start : place + 1], calls[place + 1 : last + 1]
        if all(any(call.multiplies for call in side) for side in sides):
            cuts.append(place)
            start = place + 1
        else:
            idle = _joined([call.name for call in sides[0] if call.function is None])
            if any(call.multiplies for call in sides[0]):
                idle = _joined([call.name for call in sides[1] if call.function is None])
            reasons[unit] = f"{idle} multiplies no matrices"


def _plain_cuts(flow: _Flow) -> tuple[set[int], set[int]]:
    """Units behind which a cut lies whatever they compute: no function combines across it.

    And units of a block (such as its experts) of which the next one reads nothing.
    """
    calls, units = flow.recording.calls, flow.units
    place = {call: index for index, call in enumerate(units)}
    origins: list[frozenset[int]] = []  # by call, the units that it depends on
    for call in calls:
        sources = {source.call for use in call.uses for source in use.sources}
        is_unit = call.function is None
        origins.append(
            frozenset({place[len(origins)]})
            if is_unit
            else frozenset().union(*(origins[source] for source in sources))
        )
    uses = []  # reader, units, whether it reads the output of a unit itself
    for reader, use in _uses(flow.recording):
        index = place.get(reader, len(units) if reader == len(calls) else None)
        if index is not None:
            is_identity = use.is_identity and min(use.sources).call in place
            found = frozenset().union(*(origins[source.call] for source in use.sources))
            uses.append((index, found, is_identity))
    continues = [False] * (len(units) + 1)
    for reader, found, is_identity in uses:
        continues[reader] = continues[reader] or (is_identity and min(found) < reader)
    cuts = set(range(len(units) - 1))
    for reader, found, is_identity in uses:
        if not is_identity:
            cuts.difference_update(range(max(found), reader))
            cuts.difference_update(
                behind for behind in range(min(found), max(found)) if not continues[behind + 1]
            )
    plain = {units[cut] for cut in cuts if flow.objection(units[cut]) is None}
    read = {(reader, unit) for reader, found, _ in uses for unit in found if unit == reader - 1}
    beside = {
        units[unit]
        for unit in range(len(units) - 1)
        if calls[units[unit]].entry
        and calls[units[unit]].entry == calls[units[unit + 1]].entry
        and (unit + 1, unit) not in read
    }
    return plain, beside


def _uses(recording: Recording) -> Iterator[tuple[int, Use]]:
    """Every use with the number of the call that reads; the model's output reads last."""
    for reader, call in enumerate(recording.calls):
        for use in call.uses:
            yield reader, use
    for use in recording.output_uses:
        yield len(recording.calls), use


def _some(names: set[str]) -> str:
    return ", ".join(sorted(names)[:3]) or "what a unit reads besides its arguments"


def _joined(names: list[str]) -> str:
    if len(names) <= MAX_JOINED_NAMES:
        return "+".join(names)
    return f"{names[0]}+({len(names) - 2})+{names[-1]}"


def parameter_layers(layers: tuple[Layer, ...]) -> dict[str, tuple[int, ...]]:
    """For every parameter the indices of the layers that use it; several where it is tied."""
    found: dict[str, tuple[int, ...]] = {}
    for index, layer in enumerate(layers):
        for name in sorted(layer.parameters):
            found[name] = (*found.get(name, ()), index)
    return found
