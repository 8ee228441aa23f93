"""Quick costs of even strategies: seconds by a closed form, lower bounds of seconds and memory."""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np

from heterps_agents.search.uniform_shapes import EvenStrategy, Shape, even_cuts, groups_of
from heterps_configs.documents.job import Job
from heterps_envs.arrays import Floats, Integers
from heterps_envs.problem import Problem


class Quick(NamedTuple):
    """What can be said of a strategy without simulating it.

    Attributes:
        step_time_s: By a closed form, to order strategies.
        least_s: The simulator says no less.
        price_usd_per_hour: Of its devices.
        lacks_bytes: What is missing on some device at least; 0 or less: it may fit.
    """

    step_time_s: float
    least_s: float
    price_usd_per_hour: float
    lacks_bytes: float


class _Stages(NamedTuple):
    """(S, T) of the stages of a shape on devices of a class; bytes are those of one device."""

    forward_s: Floats
    backward_s: Floats
    optimizer_s: Floats
    weight_bytes: Floats
    gradient_bytes: Floats


class _Groups(NamedTuple):
    """(G,) of the groups of some degree."""

    kind: Integers
    node: Integers
    usable_bytes: Floats
    price: Floats


class UniformCosts:
    """Quick costs of one problem's even strategies; what they have in common is computed once."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._stages_of: dict[tuple[int, int], _Stages] = {}
        self._kept_of: dict[tuple[int, int, bool], Floats] = {}
        self._groups_of: dict[int, _Groups] = {}

    def quick(self, strategy: EvenStrategy) -> Quick:
        """Of one strategy."""
        shape, job = strategy.shape, self.problem.job
        stages, groups, grid = self._stages(shape), self._groups(shape.degree), shape.grid
        kinds, rows = groups.kind[grid], np.arange(shape.num_stages)[:, None]
        pass_s = self._pass_s(strategy)
        shares = strategy.shape.num_replicas if strategy.shards_state else 1
        optimizer_s = stages.optimizer_s[rows, kinds] / shares
        number = _number(job, shape)
        message_s = self._message_s(shape, groups.node[grid])
        slowest_s = np.maximum(pass_s.max(axis=0), message_s.max(axis=0, initial=0.0))
        chain_s = pass_s.sum(axis=0) + 2 * message_s.sum(axis=0) + (number - 1) * slowest_s
        sum_s = self._sum_s(stages, groups.node[grid])
        return Quick(
            step_time_s=float(chain_s.max() + (sum_s + optimizer_s.max(axis=1)).max()),
            least_s=self._least_s(pass_s, number),
            price_usd_per_hour=float(groups.price[grid].sum()),
            lacks_bytes=self._lacks_bytes(strategy, stages, groups, number),
        )

    def least_cost(self, strategy: EvenStrategy) -> float:
        """What the objective minimises costs no less: `least_s` of `quick`, times the price."""
        shape, job = strategy.shape, self.problem.job
        least_s = self._least_s(self._pass_s(strategy), _number(job, shape))
        if job.objective != "price":
            return least_s
        return least_s * float(self._groups(shape.degree).price[shape.grid].sum())

    def _pass_s(self, strategy: EvenStrategy) -> Floats:
        """(S, replicas) seconds of a micro-batch forward and backward."""
        shape, stages = strategy.shape, self._stages(strategy.shape)
        kinds = self._groups(shape.degree).kind[shape.grid]
        rows = np.arange(shape.num_stages)[:, None]
        pass_s = (stages.forward_s + stages.backward_s)[rows, kinds]
        return pass_s + stages.forward_s[rows, kinds] if strategy.recomputes else pass_s

    def _least_s(self, pass_s: Floats, number: Integers) -> float:
        """A stage does its passes after the first one's way to it; the last one still goes back.

        The way counts where all micro-batches are equal and backward passes are done in one.
        """
        job = self.problem.job
        if len(set(job.micro_batch_sizes)) > 1:
            return float(((number - 1) * pass_s).max())
        way_s = np.cumsum(pass_s, axis=0) - pass_s
        return float((number * pass_s + (0 if job.schedule == "zero-bubble" else way_s)).max())

    def _lacks_bytes(
        self, strategy: EvenStrategy, stages: _Stages, groups: _Groups, number: Integers
    ) -> float:
        """Weights and optimizer state, and of gradients and held activations the larger."""
        job, shape, grid = self.problem.job, strategy.shape, strategy.shape.grid
        num_stages = shape.num_stages
        shares = shape.num_replicas if strategy.shards_state else 1
        kept_bytes = self._kept_bytes(shape, strategy.recomputes)
        kinds, rows = groups.kind[grid], np.arange(num_stages)[:, None]
        held = np.broadcast_to(number, grid.shape)
        if job.schedule != "gpipe":
            held = np.minimum(held, num_stages - rows)
        weights = stages.weight_bytes[rows, kinds]
        moments = weights * job.optimizer_bytes_per_parameter / job.weight_bytes_per_parameter
        kept = np.maximum(weights, held * kept_bytes[rows, kinds])
        return float((weights + moments / shares + kept - groups.usable_bytes[grid]).max())

    def _stages(self, shape: Shape) -> _Stages:
        key = shape.degree, shape.num_stages
        if key not in self._stages_of:
            self._stages_of[key] = self._summed(*key)
        return self._stages_of[key]

    def _summed(self, degree: int, num_stages: int) -> _Stages:
        own = self.problem.at_degree(degree)
        job, times = own.job, own.layer_times
        cuts, size = even_cuts(self.problem, num_stages), len(own.classes)
        starts = [layers.start for layers in cuts]
        # A parameter that layers share is there once, at least.
        parameters = np.array([e.num_parameters - e.tied_parameters for e in own.profile.layers])
        weights = np.add.reduceat(parameters, starts) * job.weight_bytes_per_parameter
        gradients = np.add.reduceat(own.tables.gradient_bytes, starts)
        return _Stages(
            np.add.reduceat(times.forward_s, starts),
            np.add.reduceat(times.backward_s, starts),
            np.add.reduceat(times.optimizer_s, starts),
            np.repeat(weights[:, None].astype(float), size, axis=1),
            gradients,
        )

    def _kept_bytes(self, shape: Shape, recomputes: bool) -> Floats:
        """(S, T) bytes of activations that a stage keeps of a micro-batch."""
        key = shape.degree, shape.num_stages, recomputes
        if key not in self._kept_of:
            own = self.problem.at_degree(shape.degree)
            kept = [
                [
                    own.layer_memory.kept_bytes(
                        layers[0], layers[-1], kind, layers if recomputes else ()
                    )
                    for kind in range(len(own.classes))
                ]
                for layers in even_cuts(self.problem, shape.num_stages)
            ]
            self._kept_of[key] = np.array(kept)
        return self._kept_of[key]

    def _groups(self, degree: int) -> _Groups:
        if degree not in self._groups_of:
            problem, groups = self.problem, groups_of(self.problem, degree)
            named = problem.device_named
            firsts = [named[group[0]] for group in groups]
            self._groups_of[degree] = _Groups(
                np.array([problem.class_of[each.name] for each in firsts]),
                np.array([self._nodes[each.node] for each in firsts]),
                np.array([min(map(problem.usable_bytes, group)) for group in groups], float),
                np.array([sum(named[n].price_usd_per_hour for n in group) for group in groups]),
            )
        return self._groups_of[degree]

    @cached_property
    def _nodes(self) -> dict[str, int]:
        return {node.name: index for index, node in enumerate(self.problem.cluster.nodes)}

    @cached_property
    def _links(self) -> tuple[Floats, Floats]:
        """(N, N) latency and seconds per byte from node to node; inside them on the diagonal."""
        ends: dict[str, list[str]] = {}
        for device in self.problem.cluster.devices:
            ends.setdefault(device.node, []).append(device.name)
        latency_s, s_per_byte = np.zeros((2, len(ends), len(ends)))
        for i, first in enumerate(ends.values()):
            for j, second in enumerate(ends.values()):
                if first[0] != second[-1]:
                    link = self.problem.link(first[0], second[-1])
                    latency_s[i, j] = link.latency_s
                    s_per_byte[i, j] = 1 / link.bandwidth_bytes_per_s
        return latency_s, s_per_byte

    def _message_s(self, shape: Shape, nodes: Integers) -> Floats:
        """(S - 1, replicas) seconds of a message from stage to stage."""
        latency_s, s_per_byte = self._links
        cuts = even_cuts(self.problem, shape.num_stages)
        num_bytes = self.problem.tables.output_bytes[[cut[-1] for cut in cuts[:-1]]]
        ends = nodes[:-1], nodes[1:]
        return np.asarray(latency_s[ends] + num_bytes[:, None] * s_per_byte[ends])

    def _sum_s(self, stages: _Stages, nodes: Integers) -> Floats:
        """(S,) seconds of a ring all-reduce of the gradients of a stage's replicas."""
        count = nodes.shape[1]
        latency_s, s_per_byte = self._links
        ends = nodes, np.roll(nodes, -1, axis=1)
        part_s = stages.gradient_bytes / count * s_per_byte[ends].max(axis=1)
        return np.asarray(2 * (count - 1) * (latency_s[ends].max(axis=1) + part_s))


def _number(job: Job, shape: Shape) -> Integers:
    """(replicas,) micro-batches of each pipeline."""
    return -(-(job.num_micro_batches - np.arange(shape.num_replicas)) // shape.num_replicas)
