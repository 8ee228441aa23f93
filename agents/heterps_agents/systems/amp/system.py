"""The system `amp`: degrees, the order of devices and the layer split, by one cost.

Li et al., AMP: Automatically finding model parallel strategies with heterogeneity awareness,
NeurIPS 2022. Notes on the paper and on its published code, which has no licence, were reachable,
with the code's numbers on one case. Its cost of a step with B micro-batches on each of d replicas:

    T = (B - 1) max_stage + sum of stages + sum of messages
        + max_stage 2 (d - 1) / (d slowest link) gradients

As published: every choice of degrees that uses all devices is looked at; only links differ from
place to place, a layer takes the mean over the devices wherever it stands; memory is not counted,
and the ranked plans are tried in turn until one fits, here by our simulator.

Other than published: the published split leaves all-reduces out and is not exact, and takes only
the last link of a ring; here a split minimises all of T (`amp.split`), and a ring is as slow as its
slowest link. Decided here, where notes are silent: messages count their way there and back, without
latencies; groups are of one class on one node; annealing goes from the order of the cluster on; of
each choice of degrees at most `MOST_ORDERS` orders are tried. The job's size of micro-batches is
kept: where it is open, whoever asks compares the answers for several.
"""

from __future__ import annotations

import warnings
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from heterps_agents.finishing.chains import Column, routed
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.registry import register
from heterps_agents.interface.system import STEP, OwnCost, System, SystemAnswer
from heterps_agents.systems.amp.degrees import Degrees, all_degrees, layers_at, units_at
from heterps_agents.systems.amp.order import Ordered, Orders, Shape, Units
from heterps_agents.systems.amp.split import Layers
from heterps_agents.systems.degrees import degrees_of
from heterps_agents.systems.ranked import first_that_fits
from heterps_configs.documents.plan import Plan
from heterps_envs.problem import Problem
from heterps_envs.simulator.binding import plan_of

# Ranked plans that are tried, and how many of them may have the same degrees.
MOST_PLANS, MOST_ORDERS = 40, 4


class Ranked(NamedTuple):
    """A plan of AMP's: degrees, the units in their order, the split."""

    degrees: Degrees
    units: Units
    found: Ordered

    @property
    def seconds(self) -> float:
        """Of a step, by AMP's cost."""
        return self.found.split.seconds


@register("amp")
class Amp(System):
    """The first plan that fits, of all degrees, orders of devices and splits by AMP's cost."""

    name = "amp"
    chooses_options = True

    def why_not(self, problem: Problem) -> str | None:
        """It gives every stage as many replicas, and every replica as many micro-batches."""
        if _degrees(problem):
            return None
        return (
            f"needs stages times replicas to be {len(problem.cluster.devices)} devices, with as "
            f"many of {problem.job.num_micro_batches} micro-batches for each replica and at most "
            f"{problem.profile.num_layers} stages"
        )

    def solve(self, problem: Problem, budget: Budget) -> SystemAnswer:
        """The best plan by AMP's cost that fits; the best of all where none does."""
        if problem.strategy.recompute == "full":
            warnings.warn("amp keeps all activations: recompute full is ignored", stacklevel=2)
        answers = ranked(problem, self.seed, budget)[:MOST_PLANS]
        makers = [partial(as_plan, problem, each, self.seed) for each in answers]
        place, plan = first_that_fits(problem, makers, budget)
        return SystemAnswer(plan, OwnCost(answers[place].seconds, STEP))


def ranked(problem: Problem, seed: int, budget: Budget) -> list[Ranked]:
    """Answers for all degrees, the least cost first."""
    known: dict[int, tuple[Units, Layers]] = {}
    found = []
    for degrees in _degrees(problem):
        size, replicas, stages = degrees
        if size not in known:
            units = units_at(problem, size)
            assert units is not None, "such degrees are left out"
            known[size] = units, layers_at(problem, size)
        units, layers = known[size]
        shape = Shape(replicas, stages, problem.job.num_micro_batches // replicas)
        orders = Orders(layers, units, shape, budget)
        orders.anneal(seed, MOST_ORDERS)
        found += [Ranked(degrees, units, each) for each in orders.best(MOST_ORDERS)]
    return sorted(found, key=lambda each: each.seconds)


def as_plan(problem: Problem, answer: Ranked, seed: int) -> Plan:
    """An answer as a plan of ours."""
    stages, pipelines = routed([tuple(_columns(answer))], [range(problem.job.num_micro_batches)])
    return plan_of(problem, stages, pipelines, planner=Amp.name, seed=seed)


def _degrees(problem: Problem) -> list[Degrees]:
    """All that the problem and its strategy allow."""
    sizes = [
        size
        for size in degrees_of(problem, problem.strategy.tensor_parallel)
        if units_at(problem, size) is not None
    ]
    job, count = problem.job, len(problem.cluster.devices)
    return list(all_degrees(count, problem.profile.num_layers, job.num_micro_batches, sizes))


def _columns(answer: Ranked) -> list[Column]:
    """Stages from the front, each with its replicas' devices one after the other."""
    size, replicas, _ = answer.degrees
    names = [answer.units.names[index] for index in answer.found.order]
    columns = []
    for index, (start, stop) in enumerate(pairwise((0, *answer.found.split.stops))):
        own = names[index * replicas : (index + 1) * replicas]
        devices = tuple(name for group in own for name in group)
        columns.append(Column(start, stop - 1, devices, degree=size))
    return columns
