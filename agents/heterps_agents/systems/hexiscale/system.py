"""The system `hexiscale`: pipelines side by side, each with its own depth, widths, cuts and share.

Yan et al., HexiScale: Accommodating large language model training over heterogeneous environment
(before: FlashFlex), arXiv 2409.01143. The abstract and notes on the published code were reachable,
not the algorithm's text: devices are partitioned into pipelines, these into stages, these into
tensor-parallel groups; layers are in proportion to memory, the cost is analytic. Decided here:

- A partition into pipelines is balanced in speed and memory and keeps bandwidth inside; it is
  found by seeded recursive bisection and exchanges (`partition`), for several numbers of pipelines
  and weights of balance.
- Inside a pipeline the devices of a class on a node form groups as large as is allowed, each
  allowed size is tried; stages are in the order of memory or along the fastest links. Layers are in
  proportion to memory, to speed, or to blends of both; what has no room moves on to a neighbour,
  and a group whose share is less than half a layer is idle.
- Cost: a pipeline's micro-batches, one after the other at the pace of its slowest stage or link,
  under 1F1B also of the round trip from a stage to the end and back (the paper's runtime is like
  GPipe); then the sums of gradients, layer by layer over the stages that hold it, and the
  optimizer, which nothing hides. Micro-batches are shared so that all pipelines end early; one that
  would be late with a single one is idle, and so is one without room for the model.
- The partition with the least cost whose plan fits by our simulator is the answer.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import numpy as np

from heterps_agents.finishing.chains import Column, routed
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.registry import register
from heterps_agents.interface.system import STEP, OwnCost, System, SystemAnswer
from heterps_agents.systems.degrees import degrees_of
from heterps_agents.systems.hexiscale.cost import GradientSums, Shared, shared
from heterps_agents.systems.hexiscale.graph import DeviceGraph
from heterps_agents.systems.hexiscale.partition import partition
from heterps_agents.systems.hexiscale.pipeline import Pipe, PipelineMaker
from heterps_agents.systems.ranked import first_that_fits
from heterps_configs.documents.plan import Plan
from heterps_configs.errors import HeterpsError, InfeasibleError
from heterps_envs.arrays import Integers
from heterps_envs.problem import Problem
from heterps_envs.simulator.binding import plan_of

# Of balance against the share of bandwidth that is cut.
WEIGHTS = (0.3, 3.0, 10.0)
# Numbers of pipelines that are all tried; beyond, each is larger by this factor.
ALL_UP_TO, FACTOR = 16, 1.3
# Plans that are simulated at most, the best by its own cost.
MOST_TRIED = 24


class _Found(NamedTuple):
    seconds: float
    shared: Shared


@register("hexiscale")
class HexiScale(System):
    """The partition into pipelines that is quickest by its own cost.

    Args:
        seed: Of the partitions.
    """

    name = "hexiscale"
    chooses_options = True

    def solve(self, problem: Problem, budget: Budget) -> SystemAnswer:
        """Pipelines of unlike depth, widths and cuts.

        Raises:
            InfeasibleError: No partition has a pipeline with room for the model.
        """
        if problem.strategy.recompute == "full":
            warnings.warn("hexiscale keeps all activations: recompute is ignored", stacklevel=2)
        graph, degrees = DeviceGraph(problem), degrees_of(problem, problem.strategy.tensor_parallel)
        if not degrees or max(map(len, graph.kinds)) < degrees[0]:
            raise HeterpsError("no node has equal devices for a group of a size that is allowed")
        found = sorted(
            self._candidates(problem, graph, degrees, budget), key=lambda each: each.seconds
        )
        if not found:
            raise InfeasibleError(
                f"{problem.tables.num_layers} layers have no room in the pipelines of any "
                "partition, in proportion to speed or memory"
            )
        if math.isinf(found[0].seconds):
            raise InfeasibleError("the pipelines of every partition need a link that is not there")
        found = [each for each in found[:MOST_TRIED] if math.isfinite(each.seconds)]
        plans = [partial(self._plan, problem, each.shared) for each in found]
        place, plan = first_that_fits(problem, plans, budget)
        return SystemAnswer(plan, OwnCost(found[place].seconds, STEP))

    def _candidates(
        self, problem: Problem, graph: DeviceGraph, degrees: tuple[int, ...], budget: Budget
    ) -> Iterator[_Found]:
        """One for each partition in which there is room for all micro-batches."""
        maker = PipelineMaker(problem, graph, degrees)
        sums, total = GradientSums(problem, graph, degrees), problem.job.num_micro_batches
        known = set[bytes]()
        for number in _numbers_of_pipelines(problem):
            for weight in WEIGHTS if number > 1 else WEIGHTS[:1]:
                if known and budget.is_exhausted:
                    return
                budget.spend()
                parts = partition(graph, number, weight, self.seed)
                if parts.tobytes() in known:
                    continue
                known.add(parts.tobytes())
                found = shared(pipes_of(graph, maker, parts, total), total)
                if found is not None:
                    yield _Found(found.seconds + sums.seconds(found.pipes), found)

    def _plan(self, problem: Problem, found: Shared) -> Plan:
        chains, shares, taken = [], [], 0
        for pipe, count in zip(found.pipes, found.micro_batches, strict=True):
            firsts = (0, *pipe.ends[:-1])
            chains.append(
                tuple(
                    Column(first, end - 1, group.devices, degree=group.degree)
                    for group, first, end in zip(pipe.groups, firsts, pipe.ends, strict=True)
                )
            )
            shares.append(range(taken, taken + count))
            taken += count
        stages, pipelines = routed(chains, shares)
        return plan_of(problem, stages, pipelines, planner=self.name, seed=self.seed)


def _numbers_of_pipelines(problem: Problem) -> list[int]:
    most = min(len(problem.cluster.devices), problem.job.num_micro_batches)
    numbers = list(range(1, min(most, ALL_UP_TO) + 1))
    while numbers[-1] < most:
        numbers.append(min(most, int(np.ceil(numbers[-1] * FACTOR))))
    return numbers


def pipes_of(graph: DeviceGraph, maker: PipelineMaker, parts: Integers, total: int) -> list[Pipe]:
    """The pipelines of a partition; of a part that has no room for the model there is none.

    Each is made for its share of the micro-batches, by speed.
    """
    speed = graph.weights[0] @ parts.T
    pipes = [
        maker.best(kinds, max(1, int(np.ceil(total * share))))
        for kinds, share in zip(graph.named(parts), speed / speed.sum(), strict=True)
    ]
    return [pipe for pipe in pipes if pipe is not None]
