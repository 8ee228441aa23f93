"""How soon replicas of the same layers can end a step, whichever layers' state they divide.

From the begin of its last backward pass on, a replica goes through its layers from the back. Their
gradients are summed in buckets (`schedule.reduce_buckets`), those of layers whose optimizer state
is divided apart from the others: each bucket when the pass has gone through the first of its
layers, one after the other. Then comes the optimizer step, of a layer with divided state one part,
and at last the second half of these layers' sums. What to divide is a choice for each layer, which
shifts the borders of buckets as well (`sum_choices`).
"""

from __future__ import annotations

from collections.abc import Iterator

from heterps_envs.step_bounds.whole_plans.sum_choices import (
    DIVIDED,
    WHOLE,
    Allowance,
    Kinds,
    Part,
    SumsEnd,
    followed,
)
from heterps_envs.step_bounds.whole_plans.summed_layers import Ring, SummedLayers


def least_after(
    layers: SummedLayers, ring: Ring, allowed: Allowance, *, divides: bool
) -> SumsEnd | None:
    """The least seconds over all choices, of sums beside the last backward pass or after it.

    Args:
        layers: What is summed.
        ring: Over which.
        allowed: Choices that may be followed.
        divides: Whether state may be divided.

    Returns:
        None where there are too many choices.
    """
    if divides and len(layers.tied) > 1:
        return None
    best = _after_pass(layers, ring, divides=divides)
    for parts in _orders(layers, divides=divides):
        found = _beside_pass(ring, parts, best.after_s, allowed)
        if found is None:
            return None
        best = min(best, found, key=lambda end: end.after_s)
    return best


def _after_pass(layers: SummedLayers, ring: Ring, *, divides: bool) -> SumsEnd:
    """All sums after the pass: then a divided layer's takes no longer, and its step less."""
    after_s = sum(layers.backward_s) + ring.seconds(sum(layers.summed_bytes))
    after_s += sum(layers.optimizer_s) / (ring.size if divides else 1)
    every = frozenset(range(len(layers.backward_s)))
    return SumsEnd(after_s, every if divides else frozenset())


def _orders(layers: SummedLayers, *, divides: bool) -> Iterator[list[Part]]:
    """A layer and the one whose parameters it uses are in one bucket if the same holds of both."""
    num_layers = len(layers.backward_s)
    kinds: Kinds = (WHOLE, DIVIDED) if divides else (WHOLE,)
    place = list(range(num_layers))
    kinds_of: list[Kinds] = [kinds] * num_layers
    for owner, user in layers.tied:
        place[owner] = place[user] = min(place[owner], place[user])
    yield _parts(layers, place, kinds_of)
    if not (divides and layers.tied):
        return
    owner, user = layers.tied[0]
    for kind in kinds:
        kinds_of[owner], kinds_of[user] = (WHOLE + DIVIDED - kind,), (kind,)
        parts = _parts(layers, list(range(num_layers)), kinds_of)
        # The user's sum waits for the owner's backward pass, whose gradients are part of it.
        ready_s = sum(layers.backward_s[min(owner, user) :])
        yield [p._replace(ready_s=ready_s) if user in p.layers else p for p in parts]


def _parts(layers: SummedLayers, place: list[int], kinds_of: list[Kinds]) -> list[Part]:
    passed_s, parts = 0.0, list[Part]()
    for front in reversed(range(len(place))):
        passed_s += layers.backward_s[front]
        own = tuple(layer for layer, at in enumerate(place) if at == front)
        if own:
            sums = (
                sum(values[layer] for layer in own)
                for values in (layers.optimizer_s, layers.gradient_bytes, layers.summed_bytes)
            )
            parts.append(Part(own, kinds_of[front], passed_s, passed_s, *sums))
    return parts


def _beside_pass(
    ring: Ring, parts: list[Part], most_s: float, allowed: Allowance
) -> SumsEnd | None:
    """The best choice that takes no more seconds: all alike is looked at first, that is quick."""
    best = SumsEnd(most_s, frozenset())
    for kind in (WHOLE, DIVIDED):
        alike = [
            part._replace(kinds=(kind,) if kind in part.kinds else part.kinds) for part in parts
        ]
        found = followed(ring, alike, best.after_s, allowed)
        best = best if found is None else min(best, found, key=lambda end: end.after_s)
    found = followed(ring, parts, best.after_s, allowed)
    return found and min(best, found, key=lambda end: end.after_s)
