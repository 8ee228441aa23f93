"""Metis' search: every layout and number of rounds, balanced, and costed by its own formula.

    T = (B - 1) max_stage + sum of stages + max_stage optimizer
        + max_stage 2 (d - 1) / (d bandwidth) gradients + sum of activations / bandwidth

for B rounds. Stages begin with as many replicas as they have devices. While one has not enough
memory, the one with the least room halves its replicas and doubles the devices of each, where such
groups are allowed.

Layouts are looked at by what they cost if layers could be cut anywhere, the least first, until
layers were balanced `MOST_BALANCED` times. One that cannot be better than the best so far, or that
has no room for the model, is left out before, which changes no answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, pairwise
from typing import NamedTuple

from heterps_agents.interface.planner import Budget
from heterps_agents.systems.metis.bounds import Bounds
from heterps_agents.systems.metis.groups import Devices, Group
from heterps_agents.systems.metis.layers import Balanced, balanced
from heterps_agents.systems.metis.layouts import Layout, layouts

# How often layers are balanced.
MOST_BALANCED = 4000


class Candidate(NamedTuple):
    """A layout before its layers are balanced, and what it costs if they could be cut anywhere."""

    even_s: float
    groups: tuple[Group, ...]
    rounds: int


class Placed(NamedTuple):
    """A plan: stages, layers behind each of them, rounds, and what Metis says a step takes."""

    seconds: float
    groups: tuple[Group, ...]
    stops: tuple[int, ...]
    rounds: int


class Search:
    """One problem's search.

    Args:
        devices: What Metis knows of them.
        orders: Names of all devices, in the orders that layouts cut.
        budget: Counts how often layers are balanced.
    """

    def __init__(self, devices: Devices, orders: list[tuple[str, ...]], budget: Budget) -> None:
        self.devices, self.orders, self.budget = devices, orders, budget
        self.bounds = Bounds(devices)
        self.job, self.num_balanced = devices.problem.job, 0

    def placed(self, seed: int) -> list[Placed]:
        """Plans that fit by Metis' own count of memory, the least cost first."""
        candidates = sorted(self._candidates(seed), key=lambda each: each.even_s)
        found: list[Placed] = []
        best_s = float("inf")
        for candidate in candidates:
            is_spent = bool(found) and self.budget.is_exhausted
            if self.num_balanced >= MOST_BALANCED or is_spent:
                break
            if self.bounds.cost_s(candidate.groups, candidate.rounds) >= best_s:
                continue
            placed = self._placed(candidate)
            if placed is not None:
                found.append(placed)
                best_s = min(best_s, placed.seconds)
        return sorted(found, key=lambda each: each.seconds)

    def _candidates(self, seed: int) -> Iterator[Candidate]:
        """Every layout with every number of rounds that deals micro-batches evenly over rounds."""
        num_devices, num_layers = len(self.orders[0]), len(self.devices.work)
        all_layouts = layouts(num_devices, num_layers, len(self.orders), seed)
        for rounds in range(1, self.job.num_micro_batches + 1):
            if self.job.num_micro_batches % rounds == 0:
                for layout in all_layouts:
                    groups = self._groups(layout, self.job.num_micro_batches // rounds)
                    if groups is not None and self.bounds.have_room(groups):
                        # Where all stages take the same.
                        even_s = 1 / sum(1 / group.whole_s for group in groups)
                        yield Candidate((rounds - 1 + len(groups)) * even_s, groups, rounds)

    def _groups(self, layout: Layout, round_size: int) -> tuple[Group, ...] | None:
        names = self.orders[layout.order]
        found = []
        for start, stop in pairwise((0, *layout.stops)):
            group = self.devices.first_group(names[start:stop], round_size)
            if group is None:
                return None
            found.append(group)
        return tuple(found)

    def _placed(self, candidate: Candidate) -> Placed | None:
        """With layers that fit; None where even the largest groups have no room."""
        groups, rounds = list(candidate.groups), candidate.rounds
        round_size = self.job.num_micro_batches // rounds
        while True:
            found = self._balanced(groups, rounds)
            if found.fits:
                seconds = self.cost_s(groups, found.stops, rounds)
                return Placed(seconds, tuple(groups), found.stops, rounds)
            for stage in sorted(range(len(groups)), key=lambda index: -found.demand[index]):
                halved = self.devices.halved(groups[stage], round_size)
                if halved is not None:
                    groups[stage] = halved
                    break
            else:
                return None

    def _balanced(self, groups: list[Group], rounds: int) -> Balanced:
        self.num_balanced += 1
        self.budget.spend()
        speeds = [1 / group.whole_s for group in groups]
        counted = accumulate(len(group.replicas) for group in reversed(groups))
        behind = [0, *counted][-2::-1]
        return balanced(
            self.devices.work,
            [speed / sum(speeds) for speed in speeds],
            lambda stage, start, stop: self._stage_s(groups[stage], start, stop),
            lambda stage, start, stop: self._demand(
                groups[stage], behind[stage], rounds, start, stop
            ),
        )

    def cost_s(self, groups: list[Group], stops: tuple[int, ...], rounds: int) -> float:
        """Seconds of a step by Metis' formula."""
        edges = list(pairwise((0, *stops)))
        own = [self._stage_s(group, *edge) for group, edge in zip(groups, edges, strict=True)]
        after = [self._after_s(group, *edge) for group, edge in zip(groups, edges, strict=True)]
        after_s = max(optimizer_s for optimizer_s, _ in after) + max(sums_s for _, sums_s in after)
        messages_s = sum(
            self._message_s(one, two, stop)
            for (one, two), stop in zip(pairwise(groups), stops, strict=False)
        )
        return (rounds - 1) * max(own) + sum(own) + after_s + messages_s

    def _stage_s(self, group: Group, start: int, stop: int) -> float:
        """Of a round, on the replica that takes longest."""
        seconds = self.devices.sums(group.degree).compute_s
        return max(share * (seconds[k][stop] - seconds[k][start]) for k, share in group.busiest)

    def _after_s(self, group: Group, start: int, stop: int) -> tuple[float, float]:
        """Of the optimizer's step, and of the all-reduce in front of it."""
        sums = self.devices.sums(group.degree)
        kinds = [kind for kind, _ in group.busiest]
        optimizer_s = max(sums.optimizer_s[k][stop] - sums.optimizer_s[k][start] for k in kinds)
        count = len(group.replicas)
        if count == 1:
            return optimizer_s, 0.0
        size = max(sums.gradient_bytes[k][stop] - sums.gradient_bytes[k][start] for k in kinds)
        names = [replica[0] for replica in group.replicas]
        slowest = self.devices.links.slowest_within(names)
        return optimizer_s, 2 * (count - 1) / count * size * slowest

    def _message_s(self, front: Group, behind: Group, stop: int) -> float:
        """Of the activations of a round, on the link of the replica that sends or gets most."""
        size = max(*front.shares, *behind.shares) * self.devices.output_bytes[stop - 1]
        return size * self.devices.links.slowest(front.devices, behind.devices)

    def _demand(self, group: Group, behind: int, rounds: int, start: int, stop: int) -> float:
        """Bytes over memory, of the device of the group that is fullest.

        Micro-batches in flight are those of our schedules: for 1F1B enough to keep all replicas
        behind busy.
        """
        sums, own = self.devices.sums(group.degree), len(group.replicas)
        most = 0.0
        for kind, share in group.busiest:
            held = share * rounds
            if self.job.schedule != "gpipe":
                held = min(held, -(-(own + behind) // own))
            state = sums.state_bytes[kind][stop] - sums.state_bytes[kind][start]
            kept = sums.activation_bytes[kind][stop] - sums.activation_bytes[kind][start]
            room = max(sums.memory_bytes[kind], 1.0)
            most = max(most, (state + held * kept) / room)
        return most
