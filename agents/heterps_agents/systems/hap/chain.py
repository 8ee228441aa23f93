"""What HAP chooses among: instructions of a chain of layers, and what they cost.

An activation between two layers is in one of four states. A layer is carried out by one of its
instructions, which begins and ends in a state; a collective changes the state between two layers.
Seconds of an instruction on device j are `fixed + per_share * share of j`, and every instruction
waits for the slowest device: what one of them loses, the next does not win back.

Source: HAP (arXiv 2401.05965, EuroSys 2024) and the cost of its published code. There, constants
are left out of the linear programme and elements are priced as bytes; here neither is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from heterps_configs.errors import HeterpsError
from heterps_envs.arrays import Floats

# `whole`: all of it on every device. `batch`, `features`: a part of the samples, of the columns.
# `partial`: a summand of all of it.
State = Literal["whole", "batch", "features", "partial"]
STATES: tuple[State, ...] = ("whole", "batch", "features", "partial")
# Data are loaded whole or by samples; the loss is computed of whole samples.
START_STATES: tuple[State, ...] = ("whole", "batch")
END_STATES: tuple[State, ...] = ("whole", "batch")

Way = Literal[
    "replicate", "split batch", "split columns", "split rows", "split experts", "as it is"
]


class Term(NamedTuple):
    """Of n devices, what each takes: `fixed + per_share * share`. The most of them counts."""

    fixed: tuple[float, ...]
    per_share: tuple[float, ...]

    def at(self, shares: Floats) -> float:
        """Of the device that takes most."""
        return float((np.array(self.fixed) + np.array(self.per_share) * shares).max())

    @property
    def is_constant(self) -> bool:
        """Whether it is the same on all devices, whatever their shares."""
        return not any(self.per_share) and len(set(self.fixed)) == 1

    def times(self, factor: float) -> Term:
        """So many times as much."""
        return Term(
            tuple(factor * value for value in self.fixed),
            tuple(factor * value for value in self.per_share),
        )


class Instruction(NamedTuple):
    """One layer carried out in one way, or one collective behind it.

    Attributes:
        name: A `Way`, or the collective.
        layer: Index of the layer; of a collective, of the one in front of it, -1 before the first.
        before: State that it begins in.
        after: State that it leaves.
        segment: Whose shares it has.
        terms: Seconds; the largest of each is waited for, one after the other.
        memory: Bytes on each device; None: none.
    """

    name: str
    layer: int
    before: State
    after: State
    segment: int
    terms: tuple[Term, ...] = ()
    memory: Term | None = None

    def seconds(self, shares: Floats) -> float:
        """Of the (n,) shares of its segment."""
        return math.fsum(term.at(shares) for term in self.terms)


Program = tuple[Instruction, ...]


def seconds_of(program: Sequence[Instruction], shares: Floats) -> float:
    """Seconds of a program with (segments, n) shares."""
    return math.fsum(each.seconds(shares[each.segment]) for each in program)


class Chain(NamedTuple):
    """What there is to choose.

    Attributes:
        speeds: (n,) of the devices, in any unit: where the search begins.
        layers: For each layer its instructions.
        borders: For each place before, between and behind the layers its collectives, one at most
            of which is used; a state that may also stay as it is, stays for nothing.
        stays: For each place, the states that may stay as they are.
        memory_bytes: (n,) of the devices; empty: without limit.
    """

    speeds: tuple[float, ...]
    layers: tuple[tuple[Instruction, ...], ...]
    borders: tuple[tuple[Instruction, ...], ...]
    stays: tuple[tuple[State, ...], ...]
    memory_bytes: tuple[float, ...] = ()

    @property
    def num_segments(self) -> int:
        """Of layers that have shares of their own."""
        return 1 + max(each.segment for layer in self.layers for each in layer)

    def only(self, names: frozenset[str]) -> Chain:
        """The same with layers carried out in some ways only.

        Raises:
            HeterpsError: A layer has none of them.
        """
        layers = tuple(tuple(e for e in layer if e.name in names) for layer in self.layers)
        if not all(layers):
            missing = next(index for index, layer in enumerate(layers) if not layer)
            raise HeterpsError(f"layer {missing} has no way among {', '.join(sorted(names))}")
        return self._replace(layers=layers)
