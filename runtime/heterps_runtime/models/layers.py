"""Layers: where a model can be cut, and which tensors cross each cut.

A cut is allowed where everything that crosses it is an output of a unit, untouched by glue; what
glue computes from unit outputs stays on one side. Units between two allowed cuts form one layer.
"""

from __future__ import annotations

from dataclasses import dataclass

from heterps_runtime.models.recording import Recording, UnitOutput, Use

# A layer of more units than this is named by its first and last one.
MAX_JOINED_NAMES = 8


@dataclass(frozen=True)
class Layer:
    """A run of unit calls that no plan may separate.

    Attributes:
        name: Names of its calls, joined by `+`.
        kind: Classes of its calls, joined by `+`.
        first_call, last_call: Numbers of its calls (inclusive).
        crossing: What crosses the cut behind it, in order of origin; empty for the last layer.
        parameters: Names of the parameters that it uses.
    """

    name: str
    kind: str
    first_call: int
    last_call: int
    crossing: tuple[UnitOutput, ...]
    parameters: frozenset[str]

    @property
    def calls(self) -> range:
        """Numbers of its calls."""
        return range(self.first_call, self.last_call + 1)


def layers_of(recording: Recording) -> tuple[Layer, ...]:
    """The finest division into layers.

    Raises:
        ValueError: The model calls no module at all.
    """
    calls = recording.calls
    if not calls:
        raise ValueError("the model calls no module that could be placed")
    ends = [*allowed_cuts(recording), len(calls) - 1]
    starts = [0, *(end + 1 for end in ends[:-1])]
    layers = []
    for first, last in zip(starts, ends, strict=True):
        part = calls[first : last + 1]
        layers.append(
            Layer(
                name=_joined([call.name for call in part]),
                kind=_joined([call.kind for call in part]),
                first_call=first,
                last_call=last,
                crossing=crossing(recording, last) if last < len(calls) - 1 else (),
                parameters=frozenset().union(*(call.parameters for call in part)),
            )
        )
    return tuple(layers)


def allowed_cuts(recording: Recording) -> list[int]:
    """Numbers of the calls after which the model can be cut."""
    calls = recording.calls
    cuts = set(range(len(calls) - 1))
    for reader, use in _uses(recording):
        if use.is_identity:
            continue
        first, last = min(use.sources).call, max(use.sources).call
        # The glue itself may not be cut from the last unit that it reads.
        cuts.difference_update(range(last, reader))
        # An older source may cross (a long skip), where the next unit continues the chain.
        cuts.difference_update(
            behind for behind in range(first, last) if not _continues(recording, behind)
        )
    return sorted(cut for cut in cuts if crossing(recording, cut))


def crossing(recording: Recording, cut: int) -> tuple[UnitOutput, ...]:
    """The unit outputs that are made by calls up to `cut` and read after it."""
    found = {
        source
        for reader, use in _uses(recording)
        if reader > cut
        for source in use.sources
        if source.call <= cut
    }
    return tuple(sorted(found))


def _uses(recording: Recording) -> list[tuple[int, Use]]:
    """Every use with the number of the call that reads; the model's output reads last."""
    uses = [(reader, use) for reader, call in enumerate(recording.calls) for use in call.uses]
    return uses + [(len(recording.calls), use) for use in recording.output_uses]


def _continues(recording: Recording, cut: int) -> bool:
    return any(
        use.is_identity and min(use.sources).call <= cut for use in recording.calls[cut + 1].uses
    )


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
