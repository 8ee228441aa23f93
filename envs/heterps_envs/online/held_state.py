"""Who holds what state: of each layer, from where to where, as shares of it.

The state of a layer is what its device must not lose: parameters, what the optimizer keeps of them
(master weights included) and buffers. Gradients are none: plans change between steps. Parameters
that several layers share are there once on each device.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate, pairwise
from typing import NamedTuple

from heterps_configs.documents.plan import Plan
from heterps_envs.problem import Problem

# From where to where of the state of a layer, as shares of it, a device has it.
Span = tuple[float, float]
WHOLE: Span = (0.0, 1.0)


class StatePart(NamedTuple):
    """State that a device holds once, if it holds any of some layers."""

    layer: int
    used_by: frozenset[int]
    num_bytes: int


def spans_by_device(plan: Plan) -> dict[str, dict[int, Span]]:
    """What of each layer the devices of a plan hold."""
    found: dict[str, dict[int, Span]] = defaultdict(dict)
    for stage in plan.stages:
        shares = stage.tensor_shares or (1 / stage.degree,) * stage.degree
        ends = [0.0, *accumulate(shares[:-1]), 1.0]
        for name, span in zip(stage.devices, pairwise(ends), strict=True):
            found[name].update(dict.fromkeys(stage.layers, span))
            found[name].update(dict.fromkeys(stage.unsplit_layers, WHOLE))
    return found


def span_of(part: StatePart, layers: Mapping[int, Span]) -> Span | None:
    """What of a part a device holds that holds so much of some layers; None: nothing."""
    spans = [layers[layer] for layer in part.used_by if layer in layers]
    return (min(spans)[0], max(end for _, end in spans)) if spans else None


def cut(span: Span, others: Iterable[Span]) -> Iterator[Span]:
    """A span in parts, each of which lies inside or outside of each of the others."""
    edges = {end for other in others for end in other if span[0] < end < span[1]}
    return pairwise(sorted({*span, *edges}))


def contains(span: Span, part: Span) -> bool:
    """Whether a part of a span lies in it."""
    return span[0] <= part[0] and part[1] <= span[1]


def state_parts(problem: Problem) -> list[StatePart]:
    """All states that are not empty; shared parameters apart from those of their layers."""
    job, layers = problem.job, problem.profile.layers
    own = [layer.num_parameters for layer in layers]
    # Of a parameter of each layer, on average: frozen ones have no state of the optimizer.
    trained = [layer.trained_parameters / max(layer.num_parameters, 1) for layer in layers]
    weight, state = job.weight_bytes_per_parameter, job.optimizer_bytes_per_parameter
    num_bytes = [weight + state * share for share in trained]
    parts: list[StatePart] = []
    for owner, users in problem.profile.tied_layers.items():
        shared = min(max(layers[user].tied_parameters for user in users), own[owner])
        own[owner] -= shared
        for user in users:
            own[user] -= layers[user].tied_parameters
        parts.append(StatePart(owner, frozenset((owner, *users)), round(shared * num_bytes[owner])))
    parts += [
        StatePart(
            index, frozenset((index,)), round(own[index] * num_bytes[index]) + layer.buffer_bytes
        )
        for index, layer in enumerate(layers)
    ]
    return [part for part in parts if part.num_bytes > 0]
