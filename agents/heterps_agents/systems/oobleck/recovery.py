"""Recovery by templates that keeps state in place, as Oobleck's rewrite of 2026 does.

Pipelines have an identity. After losses each survivor stays with its pipeline; one that is too
small borrows from the largest that can spare a node, the node with least state; where none can,
pipelines are merged under the identity that keeps more state. After joins the whole is composed
anew: of all sets of templates that use every node the fastest, then the one that keeps most state.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import linear_sum_assignment

from heterps_agents.systems.oobleck.templates import share_micro_batches, template_sets
from heterps_configs.errors import InfeasibleError

Times = Mapping[int, Callable[[int], float]]


class RecoveryUnavailable(InfeasibleError):
    """The survivors cannot form as many pipelines as are asked for."""


class Group(NamedTuple):
    """A pipeline: its identity and its nodes."""

    identity: str
    nodes: tuple[str, ...]


class Regrouped(NamedTuple):
    """Pipelines after a change of nodes.

    Attributes:
        groups: By identity.
        micro_batches: Of each group.
        rules: What was applied: simple, borrow, merge; or join; or unchanged.
        retained_bytes: State that stays under its identity.
        moved_nodes: Survivors that changed to another identity.
        iteration_s: Of the slowest pipeline.
    """

    groups: tuple[Group, ...]
    micro_batches: tuple[int, ...]
    rules: tuple[str, ...]
    retained_bytes: int
    moved_nodes: int
    iteration_s: float


def recover_groups(
    groups: Sequence[Group],
    survivors: Collection[str],
    templates: Times,
    num_micro_batches: int,
    tolerated: int,
    state_bytes: Mapping[str, int] | None = None,
) -> Regrouped:
    """Regroups the nodes that there are.

    Args:
        groups: Before the change.
        survivors: Nodes that there are now; new ones among them are joins.
        templates: For each size of a template its seconds with a number of micro-batches.
        num_micro_batches: Of the global batch, all of which are shared again.
        tolerated: Losses that the new pipelines must survive, too: one more pipeline than that.
        state_bytes: What each node holds; by default 1.

    Raises:
        RecoveryUnavailable: There are too few nodes, or no template of a size that is left.
    """
    weights = {node: (state_bytes or {}).get(node, 1) for node in survivors}
    owner = {node: group.identity for group in groups for node in group.nodes}
    rules: tuple[str, ...] = ("join",)
    if set(survivors) <= owner.keys():
        formed, rules = _mended(groups, weights, templates)
    else:
        formed = _composed(groups, weights, templates, num_micro_batches, tolerated)
    if len(formed) <= tolerated:
        raise RecoveryUnavailable(
            f"{len(formed)} pipelines are left, and tolerating {tolerated} losses needs "
            f"{tolerated + 1}"
        )
    return _rated(formed, rules, owner, weights, templates, num_micro_batches)


def _rated(
    formed: Sequence[Group],
    rules: tuple[str, ...],
    owner: Mapping[str, str],
    weights: Mapping[str, int],
    templates: Times,
    num_micro_batches: int,
) -> Regrouped:
    """Shares the batch and counts what stays and what moves."""
    times_s = [templates[len(group.nodes)] for group in formed]
    shares = share_micro_batches(times_s, num_micro_batches)
    stays = [node for g in formed for node in g.nodes if owner.get(node) == g.identity]
    known = sum(node in owner for node in weights)
    return Regrouped(
        groups=tuple(formed),
        micro_batches=shares,
        rules=rules,
        retained_bytes=sum(weights[node] for node in stays),
        moved_nodes=known - len(stays),
        iteration_s=max(time_s(share) for time_s, share in zip(times_s, shares, strict=True)),
    )


class _Open(NamedTuple):
    """A group that is still being formed."""

    identity: str
    nodes: set[str]


def _mended(
    groups: Sequence[Group], weights: Mapping[str, int], templates: Times
) -> tuple[list[Group], tuple[str, ...]]:
    """After losses alone: simple, then borrow, then merge."""
    left = [_Open(g.identity, set(g.nodes) & weights.keys()) for g in sorted(groups)]
    left = [group for group in left if group.nodes]
    before = {group.identity: len(group.nodes) for group in groups}
    if not left:
        raise RecoveryUnavailable("no node is left")
    rules = ["simple"] if any(len(g.nodes) < before[g.identity] for g in left) else []
    if _borrow(left, weights, templates):
        rules.append("borrow")
    owner = {node: group.identity for group in groups for node in group.nodes}
    merged = _merge(left, weights, owner, templates)
    if len(merged) < len(left):
        rules.append("merge")
    formed = sorted(Group(group.identity, tuple(sorted(group.nodes))) for group in merged)
    return formed, tuple(rules or ["unchanged"])


def _borrow(groups: Sequence[_Open], weights: Mapping[str, int], templates: Times) -> bool:
    """Fills groups that are too small; whether any node changed its group."""
    has_borrowed = False
    least = min(templates)
    while (small := next((g for g in groups if len(g.nodes) < least), None)) is not None:
        able = [g for g in groups if g is not small and len(g.nodes) - 1 in templates]
        if not able:
            break

        def cheapest(group: _Open) -> tuple[int, str]:
            return min((weights[node], node) for node in group.nodes)

        donor = min(able, key=lambda g: (-len(g.nodes), cheapest(g), g.identity))
        node = cheapest(donor)[1]
        donor.nodes.remove(node)
        small.nodes.add(node)
        has_borrowed = True
    return has_borrowed


def _merge(
    groups: Sequence[_Open],
    weights: Mapping[str, int],
    owner: Mapping[str, str],
    templates: Times,
) -> list[_Open]:
    """Puts groups without a template together with the partner that is fastest and keeps most."""
    merged = list(groups)

    def kept(identity: str, nodes: set[str]) -> int:
        return sum(weights[node] for node in nodes if owner[node] == identity)

    while odd := [group for group in merged if len(group.nodes) not in templates]:
        target = min(odd, key=lambda g: (len(g.nodes), g.identity))
        partners = [group for group in merged if group is not target]
        if not partners:
            raise RecoveryUnavailable(f"no template has {len(target.nodes)} nodes")

        def rank(partner: _Open, target: _Open = target) -> tuple[float, int, int, str]:
            both = target.nodes | partner.nodes
            time_s = templates.get(len(both))
            most = max(kept(target.identity, both), kept(partner.identity, both))
            seconds = float("inf") if time_s is None else time_s(1)
            return seconds, -most, len(partner.nodes), partner.identity

        partner = min(partners, key=rank)
        both = target.nodes | partner.nodes
        names = (target.identity, partner.identity)
        identity = min(names, key=lambda name: (-kept(name, both), name))
        merged = [group for group in merged if group not in (target, partner)]
        merged.append(_Open(identity, both))
    return merged


def _composed(
    groups: Sequence[Group],
    weights: Mapping[str, int],
    templates: Times,
    num_micro_batches: int,
    tolerated: int,
) -> list[Group]:
    """The best set of templates over all nodes; of equally fast ones what keeps most state."""
    best: tuple[tuple[float, int, int, tuple[Group, ...]], list[Group]] | None = None
    owner = {node: group.identity for group in groups for node in group.nodes}
    for sizes in template_sets(len(weights), list(templates), tolerated + 1):
        if len(sizes) > num_micro_batches:
            continue
        formed = _assigned(groups, weights, sizes)
        rated = _rated(formed, ("join",), owner, weights, templates, num_micro_batches)
        key = (rated.iteration_s, -rated.retained_bytes, rated.moved_nodes, rated.groups)
        if best is None or key < best[0]:
            best = key, formed
    if best is None:
        raise RecoveryUnavailable(
            f"{len(weights)} nodes cannot form {tolerated + 1} pipelines of sizes "
            f"{', '.join(map(str, sorted(templates)))} for {num_micro_batches} micro-batches"
        )
    return best[1]


def _assigned(
    groups: Sequence[Group], weights: Mapping[str, int], sizes: Sequence[int]
) -> list[Group]:
    """Nodes for each size: identities where they keep most state, the rest by name."""
    ordered = sorted(groups)
    heaviest = [
        sorted(weights.keys() & set(group.nodes), key=lambda node: (-weights[node], node))
        for group in ordered
    ]
    kept = np.array(
        [[sum(weights[n] for n in nodes[:size]) for nodes in heaviest] for size in sizes], float
    ).reshape(len(sizes), len(ordered))
    chosen = dict(zip(*linear_sum_assignment(kept, maximize=True), strict=True))
    stays = {slot: heaviest[old][: sizes[slot]] for slot, old in chosen.items()}
    taken = {node for nodes in stays.values() for node in nodes}
    free = iter(sorted(weights.keys() - taken))
    formed = []
    for slot, size in enumerate(sizes):
        nodes = list(stays.get(slot, ()))
        nodes += [next(free) for _ in range(size - len(nodes))]
        known = slot in chosen and bool(stays[slot])
        identity = ordered[chosen[slot]].identity if known else f"new-{slot}"
        formed.append(Group(identity, tuple(sorted(nodes))))
    return formed
