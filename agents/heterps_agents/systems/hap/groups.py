"""Groups of devices with their tensor shares, and the micro-batches that they are dealt.

Of a program that splits all layers over one group, the linear programme says the shares; they are
rounded to whole units of the layers. Of groups that each have all layers (split batch), it says
how many micro-batches each takes. Even shares and shares by speed are tried beside what it says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from heterps_agents.systems.hap.chain import Chain, Program, seconds_of
from heterps_agents.systems.hap.joint import best_choice
from heterps_agents.systems.hap.layers import (
    TENSOR_WAYS,
    group_chain,
    rates_of,
    tensor_program,
)
from heterps_agents.systems.hap.ratios import best_shares, even_shares, shares_by_speed
from heterps_agents.systems.hap.rounding import at_least_one, rounded_shares
from heterps_agents.systems.hap.search import best_program
from heterps_agents.systems.hap.ways import SizedLayer, chain_of
from heterps_configs.errors import InfeasibleError
from heterps_envs.arrays import Floats
from heterps_envs.layer_costs.tensor_parallel import dealt_units, split_at
from heterps_envs.problem import Problem


class ShareGroup(NamedTuple):
    """Devices of a node that have all layers together.

    Attributes:
        devices: Their names.
        shares: Of each; they sum to 1.
        layer_s: (L,) seconds of a step in which it takes all micro-batches.
        whole_layers: That it could split, and does not.
        batch_layers: Of which it splits the samples.
    """

    devices: tuple[str, ...]
    shares: tuple[float, ...]
    layer_s: tuple[float, ...]
    whole_layers: tuple[int, ...] = ()
    batch_layers: tuple[int, ...] = ()

    @property
    def unsplit_layers(self) -> frozenset[int]:
        """Layers that each device has all of."""
        return frozenset((*self.whole_layers, *self.batch_layers))


class Dealt(NamedTuple):
    """Groups with their micro-batches, and the seconds of a step by HAP's own cost."""

    groups: tuple[ShareGroup, ...]
    micro_batches: tuple[int, ...]
    seconds: float


def whole_group(problem: Problem, name: str) -> ShareGroup:
    """A device that has all layers alone."""
    return _with_shares(tensor_program(problem, [name]), [name], np.ones(1))


def share_groups(problem: Problem, names: Sequence[str]) -> Iterator[ShareGroup]:
    """Groups of some devices, all of them first, then without the slowest, down to two.

    Of each, the shares that the linear programme finds within memory come first. Behind all of them
    are those that keep some layers whole, or split them by batch.
    """
    whole_s = problem.tables.compute_s.sum(axis=0)
    quickest = sorted(names, key=lambda name: whole_s[problem.class_of[name]])
    sizes = range(len(names), 1, -1)
    groups = [[name for name in names if name in quickest[:size]] for size in sizes]
    chains = [group_chain(problem, group) for group in groups]
    for group, chain in zip(groups, chains, strict=True):
        program = tuple(own for own, *_ in chain.layers)
        yield from _groups_over(problem, group, chain, program)
    for group, chain in zip(groups, chains, strict=True):
        partly = _partly_split(problem, chain)
        if partly is not None:
            yield from _groups_over(problem, group, chain, partly)


def _partly_split(problem: Problem, chain: Chain) -> Program | None:
    """The best program that does not split all that a group could; None where that is no gain.

    Of layers that share parameters none is split where one is not.
    """
    try:
        found = best_choice(chain).program
    except InfeasibleError:
        return None
    unsplit = {*_kept_whole(chain, found), *_by_batch(found)}
    tied = set[int]()
    for owner, users in problem.profile.tied_layers.items():
        if not unsplit.isdisjoint({owner, *users}):
            tied |= {owner, *users}
    program = tuple(
        chain.layers[each.layer][1] if each.name in TENSOR_WAYS and each.layer in tied else each
        for each in found
    )
    is_gain = unsplit and (_by_batch(found) or any(each.name in TENSOR_WAYS for each in program))
    return program if is_gain else None


def _kept_whole(chain: Chain, program: Program) -> tuple[int, ...]:
    """Layers that could be split, and are not."""
    return tuple(
        each.layer
        for each in program
        if each.name == "replicate" and each is not chain.layers[each.layer][0]
    )


def _by_batch(program: Program) -> tuple[int, ...]:
    return tuple(each.layer for each in program if each.name == "split batch")


def _groups_over(
    problem: Problem, names: Sequence[str], chain: Chain, program: Program
) -> Iterator[ShareGroup]:
    whole, by_batch, layers = (
        _kept_whole(chain, program),
        _by_batch(program),
        problem.profile.layers,
    )
    unsplit = {*whole, *by_batch}
    splits = [split_at(layer, len(names)) for i, layer in enumerate(layers) if i not in unsplit]
    counts = [dealt_units(split, len(names)) for split in splits if split is not None]
    units = min([*counts, *([problem.job.micro_batch_size] if by_batch else [])], default=0)
    if units < len(names):
        return
    try:
        wanted = best_shares(program, chain)[0]
    except InfeasibleError:
        return
    tried = wanted, shares_by_speed(chain.speeds), even_shares(len(names))
    rounded = (at_least_one(each.tolist(), units) for each in tried)
    for found in dict.fromkeys(counts for counts in rounded if counts is not None):
        group = _with_shares(program, names, np.array(found) / units)
        yield group._replace(whole_layers=whole, batch_layers=by_batch)


def deal(problem: Problem, groups: Sequence[ShareGroup]) -> Dealt:
    """The micro-batches of groups that each have all layers.

    Every layer's gradients are summed over the groups; a group without micro-batches is left out.
    """
    num, gradients = problem.job.num_micro_batches, problem.tables.gradient_bytes
    if len(groups) == 1:
        return Dealt(tuple(groups), (num,), sum(groups[0].layer_s))
    rates = rates_of(problem, [group.devices[0] for group in groups])
    layers = [
        SizedLayer(tuple(times), _largest(groups, index) * num_bytes, 0.0, ("split batch",))
        for index, (times, num_bytes) in enumerate(
            zip(
                zip(*(group.layer_s for group in groups), strict=True),
                gradients.tolist(),
                strict=True,
            )
        )
    ]
    chain = chain_of(layers, rates, [1 / max(sum(group.layer_s), 1e-15) for group in groups])
    program = best_program(chain, even_shares(len(groups))[None])
    tried = (
        best_shares(program, chain)[0],
        shares_by_speed(chain.speeds),
        even_shares(len(groups)),
    )
    found = []
    for shares in tried:
        counts = rounded_shares(shares.tolist(), num) if num > 1 else _all_to_the_fastest(chain)
        if 0 in counts:
            left = [group for group, count in zip(groups, counts, strict=True) if count]
            found.append(deal(problem, left))
        else:
            own_s = seconds_of(program, np.array([counts]) / num)
            found.append(Dealt(tuple(groups), counts, own_s))
    return min(found, key=lambda dealt: dealt.seconds)


def _largest(groups: Sequence[ShareGroup], layer: int) -> float:
    """Of a layer, the most that a device holds."""
    return max(1.0 if layer in group.unsplit_layers else max(group.shares) for group in groups)


def _all_to_the_fastest(chain: Chain) -> tuple[int, ...]:
    fastest = chain.speeds.index(max(chain.speeds))
    return tuple(int(index == fastest) for index in range(len(chain.speeds)))


def _with_shares(program: Program, names: Sequence[str], shares: Floats) -> ShareGroup:
    seconds = [0.0] * (1 + max(each.layer for each in program))
    for each in program:  # a collective belongs to the layer in front of it
        seconds[max(each.layer, 0)] += each.seconds(shares)
    return ShareGroup(tuple(names), tuple(shares.tolist()), tuple(seconds))
