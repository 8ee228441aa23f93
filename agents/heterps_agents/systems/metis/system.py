"""The system `metis`: unlike groups of devices as stages, each with its own replicas and layers.

Um et al., Metis: Fast automatic distributed training on heterogeneous GPUs, USENIX ATC 2024. The
abstract and notes on the published planner were reachable; its licence is for research alone, and
no code of it is here. As published: orders of device types are cut into groups of powers of two
(`layouts`), stages begin data parallel, the batch is balanced over replicas (`groups`), layers over
stages (`layers`), both are repaired for memory, and a formula ranks what is found (`search`).

Decided here, where notes are silent or our plans differ:

- A round of the pipeline is a whole number of the job's micro-batches, dealt over a stage's
  replicas; a replica takes its share one after the other. A slow one may get none.
- Memory is counted by our tables and 1F1B's rule, in place of a coefficient of measured bytes.
- Layers weigh their mean share of the model's seconds over the classes, in every stage.
- A group that spans nodes is as slow as its slowest link; batches take no time to make, and passes
  no time to begin.
- What is looked at is capped by numbers, not by a clock: `layouts` and `search` say how.
- The ranked plans are tried until one fits by our simulator.
"""

from __future__ import annotations

import warnings
from functools import partial
from itertools import pairwise

from heterps_agents.finishing.chains import Column, routed
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.registry import register
from heterps_agents.interface.system import STEP, OwnCost, System, SystemAnswer
from heterps_agents.systems.degrees import degrees_of
from heterps_agents.systems.metis.groups import Devices, Group
from heterps_agents.systems.metis.layouts import has_layouts, type_orders
from heterps_agents.systems.metis.search import Placed, Search
from heterps_agents.systems.ranked import first_that_fits
from heterps_configs.documents.plan import Plan
from heterps_configs.errors import HeterpsError, InfeasibleError
from heterps_envs.problem import Problem
from heterps_envs.simulator.binding import plan_of

# Ranked plans that are tried.
MOST_PLANS = 20


@register("metis")
class Metis(System):
    """The least cost of all layouts that are looked at, balanced and repaired."""

    name = "metis"
    chooses_options = True

    def why_not(self, problem: Problem) -> str | None:
        """It uses all devices, in groups of powers of two."""
        num_devices, num_layers = len(problem.cluster.devices), problem.profile.num_layers
        if has_layouts(num_devices, num_layers):
            return None
        return (
            f"needs {num_devices} devices to be at most {num_layers} groups of about equal size, "
            "powers of two"
        )

    def solve(self, problem: Problem, budget: Budget) -> SystemAnswer:
        """The best plan by Metis' cost that fits.

        Raises:
            InfeasibleError: No layout has room by its own count of memory.
            HeterpsError: No node holds groups of an allowed size.
        """
        if problem.strategy.recompute == "full":
            warnings.warn("metis keeps all activations: recompute full is ignored", stacklevel=2)
        degrees = degrees_of(problem, problem.strategy.tensor_parallel)
        if not degrees:
            raise HeterpsError("no node has room for a group of a size that is allowed")
        orders = type_orders(_types(problem), self.seed)
        answers = Search(Devices(problem, degrees), orders, budget).placed(self.seed)[:MOST_PLANS]
        if not answers:
            raise InfeasibleError(
                f"no stages of {' or '.join(map(str, degrees))} devices for each replica have room "
                f"for {problem.profile.num_layers} layers, and micro-batches for all replicas"
            )
        makers = [partial(as_plan, problem, each, self.seed) for each in answers]
        place, plan = first_that_fits(problem, makers, budget)
        return SystemAnswer(plan, OwnCost(answers[place].seconds, STEP))


def as_plan(problem: Problem, answer: Placed, seed: int) -> Plan:
    """An answer as a plan of ours."""
    chain = tuple(
        Column(start, stop - 1, tuple(n for own in group.replicas for n in own), (), group.degree)
        for group, (start, stop) in zip(answer.groups, pairwise((0, *answer.stops)), strict=True)
    )
    turns = [[_turns(group) * answer.rounds for group in answer.groups]]
    stages, pipelines = routed([chain], [range(problem.job.num_micro_batches)], turns)
    return plan_of(problem, stages, pipelines, planner=Metis.name, seed=seed)


def _turns(group: Group) -> list[int]:
    """Which replica takes each micro-batch of a round: evenly mixed, so that none waits long."""
    due = [
        ((number + 0.5) / share, replica)
        for replica, share in enumerate(group.shares)
        for number in range(share)
    ]
    return [replica for _, replica in sorted(due)]


def _types(problem: Problem) -> list[list[str]]:
    """Devices of each type and memory, node by node."""
    types: dict[tuple[str, int], list[str]] = {}
    for device in problem.cluster.devices:
        types.setdefault((device.type.name, device.memory_bytes), []).append(device.name)
    return list(types.values())
