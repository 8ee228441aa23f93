"""Correction: what runs measured becomes a new problem that predicts it.

A `ProblemBelief` takes the stage times of one run after another (`heterps_envs.online.belief`). A
device type whose devices are not as predicted gets corrected layer times; devices that differ from
their type get a type of their own, those that differ alike a common one. Devices that are as
predicted stay as they are, so that equal devices stay equal. `correct` is the same for a single
window.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from heterps_configs.documents.cluster import Device
from heterps_configs.documents.stage import Stage
from heterps_configs.errors import HeterpsError
from heterps_envs.online.belief import (
    DEFAULT_SPREADS,
    Direction,
    Factors,
    Spreads,
    StageTime,
    TypeBelief,
)
from heterps_envs.online.corrected_devices import corrected
from heterps_envs.problem import Problem
from heterps_envs.schedule.workload import own_share, stage_cost

# Factors nearer to 1 are noise.
TOLERANCE = 0.03
# Devices of a group are told apart where what they take themselves differs by this share from what
# is expected of them beside the slowest: that they wait for each other for a while is noise.
GROUP_TOLERANCE = 0.1
# Where devices would make too many classes, those whose factors are this much nearer share one.
_WIDENING, _MOST_TRIES = 2.0, 8


@dataclass(frozen=True)
class StageMeasurement:
    """Median seconds of one full micro-batch on one device.

    Attributes:
        first_layer, last_layer: The stage's layers (inclusive).
        stage: How they were carried out, where that was not plainly on the device alone: on a
            group, or with layers that were computed again or waited in host memory.
        busy_share: Of a device of a group, what its passes took without waiting for the others,
            over the same of the one that took longest. Where that is not known all are taken to
            be as slow as the group.
    """

    device: str
    first_layer: int
    last_layer: int
    forward_s: float
    backward_s: float
    stage: Stage | None = None
    busy_share: float = 1.0


def drift(problem: Problem, measurements: Iterable[StageMeasurement]) -> dict[str, float]:
    """Measured over predicted compute seconds of every measured device; 1 is as predicted."""
    measured: dict[str, float] = {}
    predicted: dict[str, float] = {}
    for entry in measurements:
        seconds = predicted_pass_s(problem, entry)
        taken_s = (entry.forward_s + entry.backward_s) * _own_part(problem, entry)
        measured[entry.device] = measured.get(entry.device, 0.0) + taken_s
        predicted[entry.device] = predicted.get(entry.device, 0.0) + sum(seconds.values())
    return {name: measured[name] / predicted[name] for name in measured if predicted[name] > 0}


def predicted_pass_s(problem: Problem, entry: StageMeasurement) -> dict[Direction, float]:
    """What the problem says that the passes of a stage take."""
    if entry.stage is not None:
        cost = stage_cost(problem, entry.stage)
        return {"forward": cost.forward_s, "backward": cost.backward_s}
    kind, part = problem.class_of[entry.device], slice(entry.first_layer, entry.last_layer + 1)
    offsets, tables = _offsets_s(problem, entry), problem.tables
    return {
        "forward": float(tables.forward_s[part, kind].sum()) + offsets["forward"],
        "backward": float(tables.backward_s[part, kind].sum()) + offsets["backward"],
    }


def correct(
    problem: Problem, measurements: Sequence[StageMeasurement], tolerance: float = TOLERANCE
) -> Problem:
    """The problem as the measurements of one window show it.

    Args:
        problem: What was believed before.
        measurements: From a run of a plan of that problem.
        tolerance: Of factors; what is nearer to 1 stays as it is.

    Returns:
        A problem on the same devices (by name); the given one where all is as predicted.
    """
    belief = ProblemBelief(problem)
    belief.observe(measurements)
    return belief.problem(tolerance)


class ProblemBelief:
    """What is known of a cluster's devices from the runs on it so far.

    Args:
        problem: What was believed before the first of them.
        spreads: How sure that was.
    """

    def __init__(self, problem: Problem, spreads: Spreads = DEFAULT_SPREADS) -> None:
        self._base = problem
        groups: dict[str, list[Device]] = defaultdict(list)
        for device in problem.cluster.devices:
            groups[device.type.name].append(device)
        self._groups = dict(groups)
        self._types = {
            name: TypeBelief(
                problem.tables.forward_s[:, problem.class_of[devices[0].name]],
                problem.tables.backward_s[:, problem.class_of[devices[0].name]],
                len(devices),
                spreads,
            )
            for name, devices in self._groups.items()
        }
        self._place = {
            device.name: (name, index)
            for name, devices in self._groups.items()
            for index, device in enumerate(devices)
        }

    @property
    def devices(self) -> tuple[str, ...]:
        """Names of all devices of the cluster."""
        return tuple(self._place)

    def __getstate__(self) -> dict[str, Any]:
        """Without what the problem has computed: that need not be sent to another process."""
        return {**self.__dict__, "_base": replace(self._base)}

    def copied(self) -> ProblemBelief:
        """A copy that does not see what is observed later."""
        found = copy(self)
        found._types = deepcopy(self._types)
        return found

    def observe(self, measurements: Sequence[StageMeasurement]) -> None:
        """Takes the stage times of one window of a run of any plan on the cluster."""
        times: dict[str, list[StageTime]] = defaultdict(list)
        for entry in (_as_alone(self._base, each) for each in measurements):
            name, index = self._place[entry.device]
            offsets, ends = _offsets_s(self._base, entry), (entry.first_layer, entry.last_layer)
            directions: dict[Direction, float] = {
                "forward": entry.forward_s,
                "backward": entry.backward_s,
            }
            times[name] += [
                StageTime(index, direction, *ends, seconds, offsets[direction])
                for direction, seconds in directions.items()
            ]
        for name, own in times.items():
            self._types[name].observe(own)

    def spread(self, device: str) -> float:
        """Standard deviation of the logarithm of a forward pass over all layers of a device."""
        name, index = self._place[device]
        belief = self._types[name]
        return belief.spread(StageTime(index, "forward", 0, belief.num_layers - 1, 1.0))

    def problem(self, tolerance: float = TOLERANCE) -> Problem:
        """The problem by the most likely factors.

        Args:
            tolerance: Of factors; what is nearer to 1 stays as it is.
        """
        for _ in range(_MOST_TRIES):
            problem = corrected(self._base, self._likely(tolerance))
            try:
                assert problem.classes
            except HeterpsError:  # more classes than planners support
                tolerance *= _WIDENING
            else:
                return problem
        return self._base

    def draws(self, count: int, seed: int, problem: Problem) -> Iterator[Problem]:
        """Problems drawn from the belief.

        Args:
            count: How many.
            seed: Of the draws; a longer list begins with a shorter one.
            problem: One of this belief's. Devices that share a class there do so in every draw,
                where they are as the first of them was drawn.
        """
        groups = [tuple(device.name for device in entry.devices) for entry in problem.classes]
        for index in range(count):
            rng = np.random.default_rng([seed, index])
            drawn = {name: belief.draw(rng) for name, belief in self._types.items()}
            factors = {}
            for names in groups:
                kind, device = self._place[names[0]]
                factors[names] = drawn[kind][device]
            yield corrected(self._base, factors)

    def _likely(self, tolerance: float) -> dict[tuple[str, ...], Factors]:
        """Factors by the names of the devices that share them; others are as in the base."""
        found: dict[tuple[str, ...], Factors] = {}
        for name, belief in self._types.items():
            if not belief.is_measured:
                continue
            parts: dict[int, list[int]] = defaultdict(list)
            for index in range(belief.num_devices):
                own = belief.log_device(index)
                # Devices that differ alike are told apart no further.
                parts[0 if abs(own) <= tolerance else round(own / (2 * tolerance))].append(index)
            for part, indices in parts.items():
                devices = tuple(self._groups[name][index].name for index in indices)
                measured = [index for index in indices if belief.has_measured(index)]
                factors = _mean([belief.factors(index) for index in measured or indices])
                if part != 0 or _largest(factors) > tolerance:
                    found[devices] = factors
        return found


def _as_alone(problem: Problem, entry: StageMeasurement) -> StageMeasurement:
    """What the device would have taken alone for whole layers, if it is as far from its times.

    The ranks of a group wait for one another in every layer: its times are those of the slowest.
    """
    if entry.stage is None:
        return entry
    alone = replace(entry, stage=None)
    whole_s, own_s = predicted_pass_s(problem, alone), predicted_pass_s(problem, entry)
    part = _own_part(problem, entry)
    return replace(
        alone,
        forward_s=entry.forward_s * part * _ratio(whole_s["forward"], own_s["forward"]),
        backward_s=entry.backward_s * part * _ratio(whole_s["backward"], own_s["backward"]),
    )


def _own_part(problem: Problem, entry: StageMeasurement) -> float:
    """How much nearer a device of a group is to its own times than the group is to its times."""
    if entry.stage is None or entry.stage.degree == 1:
        return 1.0
    part = entry.busy_share / own_share(problem, entry.stage, entry.device)
    return 1.0 if abs(part - 1) < GROUP_TOLERANCE else part


def _ratio(seconds: float, others_s: float) -> float:
    return seconds / others_s if others_s > 0 else 1.0


def _offsets_s(problem: Problem, entry: StageMeasurement) -> dict[Direction, float]:
    """What a stage takes beside its layers, as `heterps_envs.schedule.workload` counts it."""
    kind, times = problem.class_of[entry.device], problem.layer_times
    cuts = [cut for cut in (entry.first_layer - 1, entry.last_layer) if cut >= 0]
    cut_s = float(times.cut_s[cuts, kind].sum()) / 2
    return {
        "forward": float(times.stage_forward_s[entry.first_layer, kind]) + cut_s,
        "backward": float(times.stage_backward_s[entry.first_layer, kind]) + cut_s,
    }


def _largest(factors: Factors) -> float:
    """How far the factors are from 1 at most."""
    both = np.concatenate([factors.forward, factors.backward])
    return float(np.abs(both - 1).max())


def _mean(factors: Sequence[Factors]) -> Factors:
    """Geometric means."""
    return Factors(
        np.exp(np.mean([np.log(each.forward) for each in factors], axis=0)),
        np.exp(np.mean([np.log(each.backward) for each in factors], axis=0)),
        math.exp(float(np.mean([math.log(each.stage_forward) for each in factors]))),
        math.exp(float(np.mean([math.log(each.stage_backward) for each in factors]))),
    )
