"""Every plan of pipelines side by side, where these are few: the best, and that it is the best.

A pipeline has one device for each stage. None with some micro-batches is simulated in less than

    max over its stages of  in + (micro-batches) (forward + backward) + max(optimizer, out)

with `in` and `out` what the stages in front of it and their messages take, forth and back. So plans
are taken by that bound, the least first, until it reaches what the best plan takes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise, permutations
from typing import NamedTuple

import numpy as np

from heterps_agents.asymmetric.judged import Judge, Judged
from heterps_agents.asymmetric.shares import least_longest
from heterps_agents.asymmetric.weave import Lane, Part, Weave, plan_of_weave
from heterps_configs.documents.stage import Stage
from heterps_envs.arrays import Floats
from heterps_envs.problem import Problem
from heterps_envs.schedule.workload import stage_cost

# Pipelines, sets of them, and plans that are looked at at most.
MOST_PIPELINES, MOST_SETS, MOST_PLANS = 2_000, 20_000, 3_000
# A simulated step is a sum with rounding errors.
ROUNDING = 1e-9


class PipelineBound(NamedTuple):
    """Classes and cuts, and the bound: with m micro-batches `max(before_s + m each_s)`."""

    classes: tuple[int, ...]
    stops: tuple[int, ...]
    before_s: Floats
    each_s: Floats

    def least_s(self, share: int) -> float:
        """The bound."""
        return float((self.before_s + share * self.each_s).max())

    def most_within(self, seconds: float) -> int:
        """Micro-batches with which the bound is no more."""
        done = (seconds * (1 + ROUNDING) - self.before_s) / np.maximum(self.each_s, 1e-300)
        return max(0, math.floor(min(float(done.min()), 1e9)))


_Set = tuple[PipelineBound, ...]


def can_be_exhaustive(problem: Problem) -> bool:
    """Whether there are few enough plans, and the bound holds of them."""
    is_known = problem.job.schedule in ("1f1b", "gpipe") and problem.strategy.is_plain
    counts = [entry.count for entry in problem.classes]
    # Devices of a class are alike where they are on one node, or each on one of its own.
    nodes = [len({device.node for device in entry.devices}) for entry in problem.classes]
    are_alike = all(size in (1, count) for size, count in zip(nodes, counts, strict=True))
    are_undirected = all(node.reverse_link is None for node in problem.cluster.nodes)
    if not (is_known and are_alike and are_undirected) or sum(counts) > 6:
        return False
    return _num_pipelines(counts, problem.profile.num_layers) <= MOST_PIPELINES


def best_of_all(problem: Problem, known: Judged, judge: Judge) -> tuple[Judged, bool]:
    """The best plan, and whether no plan of pipelines side by side is simulated in less.

    Args:
        problem: With a class for devices that are alike, see `can_be_exhaustive`.
        known: Of any kind, to begin with.
        judge: Simulates.
    """
    best, is_complete = known, True
    sets = _sets(problem, known.cost)
    if sets is None:
        return best, False
    total = problem.job.num_micro_batches
    bounds = [_least_of_set(each, total) for each in sets]
    for index in sorted(range(len(sets)), key=bounds.__getitem__):
        if bounds[index] >= best.cost * (1 - ROUNDING):
            break
        for shares in _shares(sets[index], total, best.cost):
            bound = max(p.least_s(m) for p, m in zip(sets[index], shares, strict=True))
            if bound >= best.cost * (1 - ROUNDING):
                break
            if judge.is_exhausted or judge.num_simulated >= MOST_PLANS:
                return best, False
            weave = _weave(problem, sets[index], shares)
            found = judge.judged_with_sums(plan_of_weave(weave, known.plan), best.cost)
            if found.cost < best.cost:
                best = found
    return best, is_complete


def _num_pipelines(counts: Sequence[int], num_layers: int) -> int:
    """Sequences of classes with their cuts."""
    return sum(
        math.comb(num_layers - 1, len(classes) - 1) for classes in _sequences(counts, num_layers)
    )


def _sequences(counts: Sequence[int], num_layers: int) -> list[tuple[int, ...]]:
    """Classes of the devices of a pipeline, front first."""
    devices = [kind for kind, count in enumerate(counts) for _ in range(count)]
    found = dict[tuple[int, ...], None]()
    for size in range(1, min(len(devices), num_layers) + 1):
        found |= dict.fromkeys(permutations(devices, size))
    return list(found)


def _sets(problem: Problem, limit_s: float) -> list[_Set] | None:
    """Sets of pipelines that may be done in time; None: there are too many."""
    counts = [entry.count for entry in problem.classes]
    num_layers, total = problem.profile.num_layers, problem.job.num_micro_batches
    pipelines = [
        own
        for classes in _sequences(counts, num_layers)
        for cuts in combinations(range(1, num_layers), len(classes) - 1)
        if (own := pipeline_bound(problem, classes, (*cuts, num_layers))).most_within(limit_s)
    ]
    most = [pipeline.most_within(limit_s) for pipeline in pipelines]
    found = list[_Set]()

    def add(first: int, chosen: _Set, left: list[int], done: int) -> bool:
        """Goes on with pipelines from `first` on; False: too many."""
        if done >= total:
            found.append(chosen)
            if len(found) > MOST_SETS:
                return False
        if len(chosen) == total:
            return True
        for index in range(first, len(pipelines)):
            rest = list(left)
            for kind in pipelines[index].classes:
                rest[kind] -= 1
            if min(rest) >= 0:
                more = (*chosen, pipelines[index])
                if not add(index, more, rest, done + most[index]):
                    return False
        return True

    return found if add(0, (), counts, 0) else None


def pipeline_bound(
    problem: Problem, classes: tuple[int, ...], stops: tuple[int, ...]
) -> PipelineBound:
    """The bound of a pipeline.

    Args:
        problem: With its classes.
        classes: Of its devices, front first.
        stops: The layers behind its stages.
    """
    sizes = problem.job.micro_batch_sizes
    unit = min(sizes) / problem.job.micro_batch_size
    # Devices of one class are different ones.
    taken, names = [0] * len(problem.classes), list[str]()
    for kind in classes:
        names.append(problem.classes[kind].devices[taken[kind]].name)
        taken[kind] += 1
    costs = [
        stage_cost(
            problem,
            Stage.unchecked(name="", first_layer=first, last_layer=stop - 1, devices=(name,)),
        )
        for (first, stop), name in zip(pairwise((0, *stops)), names, strict=True)
    ]
    in_s, out_s, before, each = 0.0, 0.0, list[float](), list[float]()
    hosts = [node.host for node in problem.cluster.nodes]
    host_s = max(host.send_s for host in hosts) + max(host.receive_s for host in hosts)
    for index, cost in enumerate(costs):
        first = stops[index - 1] if index else 0
        kind = classes[index]
        optimizer_s = float(problem.tables.optimizer_s[first : stops[index], kind].sum())
        compute_s = cost.forward_s + cost.backward_s
        # The smallest micro-batch may be any of them.
        before.append(in_s + max(optimizer_s, out_s) - (1 - unit) * compute_s)
        each.append(compute_s)
        in_s, out_s = in_s + unit * cost.forward_s, out_s + unit * cost.backward_s
        if index + 1 < len(costs):
            link = problem.link(names[index], names[index + 1])
            message = max(link.latency_s - host_s, 0.0)
            message += unit * cost.output_bytes / link.bandwidth_bytes_per_s
            in_s, out_s = in_s + message, out_s + message
    return PipelineBound(classes, stops, np.array(before), np.array(each))


def _least_of_set(pipelines: _Set, total: int) -> float:
    """The bound with the best shares."""
    steps = [np.array([each.least_s(share) for share in range(total + 1)]) for each in pipelines]
    shares = least_longest(steps, total)
    assert shares is not None, "there are no more pipelines than micro-batches"
    return max(float(step[share]) for step, share in zip(steps, shares, strict=True))


def _shares(pipelines: _Set, total: int, seconds: float) -> list[tuple[int, ...]]:
    """All shares within a time by the bound, the least bound first."""
    most = [min(each.most_within(seconds), total) for each in pipelines]

    def split(index: int, left: int) -> Iterator[tuple[int, ...]]:
        if index + 1 == len(most):
            if 1 <= left <= most[index]:
                yield (left,)
            return
        behind = len(most) - index - 1
        for own in range(1, min(most[index], left - behind) + 1):
            for rest in split(index + 1, left - own):
                yield (own, *rest)

    def bound(shares: tuple[int, ...]) -> float:
        return max(p.least_s(m) for p, m in zip(pipelines, shares, strict=True))

    return sorted(split(0, total), key=bound)


def _weave(problem: Problem, pipelines: _Set, shares: Sequence[int]) -> Weave:
    taken, lanes = [0] * len(problem.classes), list[Lane]()
    for pipeline, share in zip(pipelines, shares, strict=True):
        parts = list[Part]()
        for kind, stop in zip(pipeline.classes, pipeline.stops, strict=True):
            name = problem.classes[kind].devices[taken[kind]].name
            taken[kind] += 1
            parts.append(Part(stop, ((name,),)))
        lanes.append(Lane(share, tuple(parts)))
    return Weave((tuple(lanes),))
