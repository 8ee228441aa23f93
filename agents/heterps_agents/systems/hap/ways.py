"""The five ways of a layer, and chains made of layers by their sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from heterps_agents.systems.hap.chain import STATES, Chain, Instruction, State, Term, Way
from heterps_agents.systems.hap.collectives import Rates, conversions

# What each begins and ends in. Columns read all of what comes in and make a part of what goes out;
# rows read a part and make a summand. Experts take all samples, or their own after an exchange.
# Work without parameters, element by element, leaves its input as it is.
ENDS: dict[Way, tuple[tuple[State, State], ...]] = {
    "replicate": (("whole", "whole"),),
    "split batch": (("batch", "batch"),),
    "split columns": (("whole", "features"),),
    "split rows": (("features", "partial"),),
    "split experts": (("whole", "partial"), ("batch", "batch")),
    "as it is": (("whole", "whole"), ("batch", "batch"), ("features", "features")),
}


class SizedLayer(NamedTuple):
    """What HAP knows of a layer.

    Attributes:
        seconds: (n,) of its passes there and back on each device, all of it.
        parameter_bytes: Of its gradients.
        output_bytes: Of what it returns, for all samples.
        ways: Those that it has.
        segment: Layers of another segment have other shares.
    """

    seconds: tuple[float, ...]
    parameter_bytes: float
    output_bytes: float
    ways: tuple[Way, ...]
    segment: int = 0


def chain_of(
    layers: Sequence[SizedLayer], rates: Rates, speeds: Sequence[float] | None = None
) -> Chain:
    """The chain of some layers.

    Args:
        layers: The layers.
        rates: Of the devices' collectives.
        speeds: (n,) of the devices; by default those of all layers together.
    """
    if speeds is None:
        speeds = [1 / sum(times) for times in zip(*(e.seconds for e in layers), strict=True)]
    kinds = [
        tuple(e for way in layer.ways for e in _instructions(index, way, layer, rates))
        for index, layer in enumerate(layers)
    ]
    borders: list[tuple[Instruction, ...]] = [()]
    stays: list[tuple[State, ...]] = [STATES]
    for index, layer in enumerate(layers):
        is_border = index + 1 < len(layers) and layers[index + 1].segment != layer.segment
        borders.append(conversions(index, layer.output_bytes, rates, layer.segment, is_border))
        stays.append(("whole", "partial") if is_border else STATES)
    return Chain(tuple(speeds), tuple(kinds), tuple(borders), tuple(stays))


def _instructions(index: int, way: Way, layer: SizedLayer, rates: Rates) -> Iterator[Instruction]:
    nothing = (0.0,) * rates.devices
    whole, part = Term(layer.seconds, nothing), Term(nothing, layer.seconds)
    for before, after in ENDS[way]:
        terms = [whole if before == after == "whole" else part]
        if way == "split batch" or (way == "as it is" and before == "batch"):
            terms += _summed_gradients(layer, rates)
        if way == "split experts" and before == "batch":
            if "all-to-all" not in rates.links:
                continue
            # To the experts and back again, and the same for the gradients.
            terms += [rates.term("all-to-all", layer.output_bytes).times(4)]
        yield Instruction(way, index, before, after, layer.segment, tuple(terms))


def _summed_gradients(layer: SizedLayer, rates: Rates) -> list[Term]:
    """Of parameters that every device holds and has seen other samples with."""
    if not layer.parameter_bytes:
        return []
    return [rates.term("all-reduce", layer.parameter_bytes)]
