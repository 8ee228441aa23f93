"""A stage's devices: tensor-parallel groups as replicas, and the data balance over them.

A round of the pipeline has so many micro-batches of the job, which the replicas of a stage share by
largest remainders in proportion to their speed. Metis gives a replica its share as one batch; here
micro-batches have one size, and a replica takes its share one after the other.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

from heterps_agents.systems.degrees import AtDegree, at_degree, groups_in_order
from heterps_agents.systems.node_links import NodeLinks
from heterps_agents.systems.shares import in_proportion
from heterps_envs.arrays import Floats
from heterps_envs.problem import Problem

# Seconds of a layer that takes none: a device has a speed.
LEAST_S = 1e-15


class Group(NamedTuple):
    """The devices of a stage.

    Attributes:
        devices: All of them.
        degree: Devices of a replica.
        replicas: Devices of those replicas that have a share.
        shares: Micro-batches of a round for each of them.
        busiest: Device classes, and the most that a replica of each takes.
        whole_s: Of a round through the whole model.
    """

    devices: tuple[str, ...]
    degree: int
    replicas: tuple[tuple[str, ...], ...]
    shares: tuple[int, ...]
    busiest: tuple[tuple[int, int], ...]
    whole_s: float


class Sums(NamedTuple):
    """For each device class: of the layers in front of each cut, at one degree."""

    compute_s: list[list[float]]
    optimizer_s: list[list[float]]
    state_bytes: list[list[float]]
    activation_bytes: list[list[float]]
    gradient_bytes: list[list[float]]
    memory_bytes: list[float]

    @classmethod
    def of(cls, found: AtDegree) -> Sums:
        """Those of the layers at a degree."""
        compute_s, optimizer_s, state_bytes, activation_bytes, gradient_bytes, memory_bytes = found
        return cls(
            _summed(compute_s), _summed(optimizer_s), _summed(state_bytes),
            _summed(activation_bytes), _summed(gradient_bytes), memory_bytes.tolist(),
        )  # fmt: skip


def _summed(values: Floats) -> list[list[float]]:
    return [[0.0, *column.cumsum().tolist()] for column in values.transpose()]


class Devices:
    """What Metis knows of the devices of a problem, and of the layers on them.

    Args:
        problem: The problem.
        degrees: Devices that a replica may have.
    """

    def __init__(self, problem: Problem, degrees: tuple[int, ...]) -> None:
        self.problem, self.degrees = problem, degrees
        self.output_bytes: list[float] = problem.tables.output_bytes.tolist()
        self._sums: dict[int, Sums] = {}
        self._groups: dict[tuple[tuple[str, ...], int, int], Group | None] = {}

    def sums(self, degree: int) -> Sums:
        """Sums over layers, of groups of a degree."""
        if degree not in self._sums:
            self._sums[degree] = Sums.of(at_degree(self.problem, degree))
        return self._sums[degree]

    @cached_property
    def links(self) -> NodeLinks:
        """The links between devices."""
        return NodeLinks.of(self.problem)

    @cached_property
    def work(self) -> list[float]:
        """Of each layer: its share of the model's seconds, the mean over the classes."""
        seconds = at_degree(self.problem, self.degrees[0]).compute_s + LEAST_S
        mean = (seconds / seconds.sum(axis=0)).mean(axis=1)
        return [float(each) for each in mean]

    def first_group(self, devices: tuple[str, ...], round_size: int) -> Group | None:
        """Data parallel first: the smallest degree with micro-batches for each replica."""
        found = (self.group(devices, degree, round_size) for degree in self.degrees)
        return next((group for group in found if group is not None), None)

    def halved(self, group: Group, round_size: int) -> Group | None:
        """With half as many replicas of twice as many devices; None where that is not possible."""
        degree = 2 * group.degree
        return self.group(group.devices, degree, round_size) if degree in self.degrees else None

    def group(self, devices: tuple[str, ...], degree: int, round_size: int) -> Group | None:
        """The devices as replicas of a degree, with their shares; None where that is not possible.

        Each replica must have a micro-batch to take, and its devices are alike and on one node.

        Args:
            devices: Of the stage, in order.
            degree: Devices of a replica.
            round_size: Micro-batches of a round.
        """
        key = devices, degree, round_size
        if key not in self._groups:
            self._groups[key] = self._group(devices, degree, round_size)
        return self._groups[key]

    def _group(self, devices: tuple[str, ...], degree: int, round_size: int) -> Group | None:
        if len(devices) > round_size * degree:
            return None
        replicas = groups_in_order(self.problem, devices, degree)
        if replicas is None:
            return None
        kinds = [self.problem.class_of[replica[0]] for replica in replicas]
        whole = self.sums(degree).compute_s
        shares = in_proportion(round_size, [1 / max(whole[k][-1], LEAST_S) for k in kinds])
        most: dict[int, int] = {}
        for kind, share in zip(kinds, shares, strict=True):
            most[kind] = max(share, most.get(kind, 0))
        used = [(own, share) for own, share in zip(replicas, shares, strict=True) if share]
        busiest = tuple((kind, share) for kind, share in most.items() if share)
        return Group(
            devices, degree, tuple(own for own, _ in used), tuple(share for _, share in used),
            busiest, max(share * whole[kind][-1] for kind, share in busiest),
        )  # fmt: skip
