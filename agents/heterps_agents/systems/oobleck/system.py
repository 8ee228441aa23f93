"""The system `oobleck`: pipelines of the best templates over equal devices, as a plan of ours.

Oobleck's unit is a node, which runs one stage; a stage of our plans runs on one device, so devices
stand for nodes. Of all sets of templates that use every device and leave a pipeline after as many
losses as are tolerated, the one whose slowest pipeline ends first is taken. Sums of gradients over
the pipelines are no part of its times, and memory only of the least number of devices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from operator import mul

from heterps_agents.finishing.chains import Chain, Column, routed
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.registry import register
from heterps_agents.interface.system import STEP, OwnCost, System, SystemAnswer
from heterps_agents.systems.devices import why_unequal
from heterps_agents.systems.oobleck.templates import (
    Template,
    best_template,
    least_nodes,
    share_micro_batches,
    template_sets,
    template_sizes,
)
from heterps_configs.errors import InfeasibleError
from heterps_envs.problem import Problem
from heterps_envs.simulator.binding import plan_of

# Sets of templates are as many as partitions of the number of devices: 8,349 for so many.
MAX_DEVICES = 32


@register("oobleck")
class Oobleck(System):
    """One more pipeline than losses that are tolerated, at least, whose sizes use every device.

    Args:
        seed: Written into plans; nothing is drawn.
        tolerated: Losses.
    """

    name = "oobleck"

    def __init__(self, seed: int = 0, tolerated: int = 1) -> None:
        super().__init__(seed)
        self.tolerated = tolerated

    def why_not(self, problem: Problem) -> str | None:
        """Its nodes are all alike, and few enough to try every set of templates."""
        count = len(problem.cluster.devices)
        if count > MAX_DEVICES:
            return f"tries sets of templates for up to {MAX_DEVICES} devices; there are {count}"
        return why_unequal(problem)

    def solve(self, problem: Problem, budget: Budget) -> SystemAnswer:
        """The set of templates whose slowest pipeline ends first, with its shares of the batch."""
        templates = self._templates(problem)
        names = [device.name for device in problem.cluster.devices]
        num_micro_batches = problem.job.num_micro_batches
        best: tuple[float, tuple[int, ...], tuple[int, ...]] | None = None
        for sizes in template_sets(len(names), list(templates), self.tolerated + 1):
            if len(sizes) > num_micro_batches:
                continue
            budget.spend()
            seconds = [templates[size].micro_batch_s for size in sizes]
            shares = share_micro_batches([partial(mul, s) for s in seconds], num_micro_batches)
            found = max(map(mul, seconds, shares)), sizes, shares
            best = found if best is None else min(best, found)
        if best is None:
            raise InfeasibleError(
                f"no {self.tolerated + 1} to {num_micro_batches} pipelines of {min(templates)} to "
                f"{max(templates)} devices use all {len(names)}"
            )
        slowest_s, sizes, shares = best
        chains = _chains([templates[size] for size in sizes], names)
        ends = [sum(shares[: index + 1]) for index in range(len(shares))]
        parts = [range(end - share, end) for end, share in zip(ends, shares, strict=True)]
        stages, pipelines = routed(chains, parts)
        plan = plan_of(problem, stages, pipelines, planner=self.name, seed=self.seed)
        return SystemAnswer(plan, OwnCost(slowest_s, STEP))

    def _templates(self, problem: Problem) -> Mapping[int, Template]:
        """The best template of each size, from the least that holds the model on."""
        tables = problem.tables
        weights = [layer.num_parameters for layer in problem.profile.layers]
        num_bytes = problem.job.weight_bytes_per_parameter
        least = least_nodes(
            [count * num_bytes for count in weights],
            float(tables.memory_bytes.min()),
            float(tables.activation_bytes.max()),
        )
        sizes = template_sizes(len(problem.cluster.devices), least, self.tolerated)
        seconds = [float(value) for value in tables.compute_s[:, 0]]
        usable = [size for size in sizes if size <= tables.num_layers]
        if not usable:
            raise InfeasibleError(
                f"{tables.num_layers} layers cannot be cut for the least {least} devices"
            )
        return {size: best_template(seconds, size) for size in usable}


def _chains(templates: Sequence[Template], names: Sequence[str]) -> list[Chain]:
    """Each template on the next devices, one for each stage."""
    chains: list[Chain] = []
    free = iter(names)
    for template in templates:
        starts = [sum(template.sizes[:stage]) for stage in range(len(template.sizes))]
        chains.append(
            tuple(
                Column(start, start + size - 1, (next(free),))
                for start, size in zip(starts, template.sizes, strict=True)
            )
        )
    return chains
