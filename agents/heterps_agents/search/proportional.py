"""Planners that only divide: one stage for every device, in the order of the cluster file."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from heterps_agents.interface.answer import answer
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.registry import register
from heterps_configs.documents.cluster import NO_LINK
from heterps_configs.documents.plan import Plan
from heterps_configs.errors import InfeasibleError
from heterps_configs.units import bytes_text
from heterps_envs.arrays import Floats
from heterps_envs.closed_form.formula import KernelTables, evaluate, in_flight, kernel_tables
from heterps_envs.closed_form.objective import Goal
from heterps_envs.closed_form.placement import PlacedStage, Placement, encode
from heterps_envs.closed_form.usable import on_usable_devices
from heterps_envs.problem import Problem


def even_placement(problem: Problem) -> Placement:
    """The naive baseline: equally many layers on every device, whether they fit or not.

    With more devices than layers the last devices stay idle.
    """
    return _divide(
        problem, np.ones(len(problem.profile.layers)), np.ones(problem.tables.num_classes)
    )


def memory_proportional_placement(problem: Problem) -> Placement:
    """Weights, gradients and optimizer state in proportion to the memory of each device."""
    return _divide(problem, problem.tables.state_bytes, problem.tables.memory_bytes)


def speed_proportional_placement(problem: Problem) -> Placement:
    """Compute in proportion to speed: the inverse of a device's time for the whole model."""
    compute_s = problem.tables.compute_s
    # A class that takes no time for the whole model is as fast as the fastest that takes some.
    whole_s = compute_s.sum(axis=0)
    least_s = whole_s[whole_s > 0].min(initial=1.0)
    whole_s = np.maximum(whole_s, least_s)
    return _divide(problem, (compute_s / whole_s).mean(axis=1), least_s / whole_s)


def simple_placements(problem: Problem) -> tuple[Placement, ...]:
    """The three placements above: starts for a search."""
    return (
        even_placement(problem),
        memory_proportional_placement(problem),
        speed_proportional_placement(problem),
    )


def cut_in_proportion(layer_weight: Floats, device_weight: Floats) -> NDArray[np.int64]:
    """Where each device's layers end, so that shares of weight follow shares of the devices.

    A layer goes to the device in whose share its middle falls.

    Args:
        layer_weight: (L,) of the layers in order; not negative.
        device_weight: (D,) of the devices in order; not negative.

    Returns:
        (D,) index behind the last layer of each device, not decreasing, the last one L. A device
        whose share holds the middle of no layer gets none.
    """
    total = layer_weight.sum()
    weight = layer_weight if total > 0 else np.ones_like(layer_weight)
    middles = (np.cumsum(weight) - weight / 2) / weight.sum()
    shares = device_weight if device_weight.sum() > 0 else np.ones_like(device_weight)
    ends = np.cumsum(shares) / shares.sum()
    stops = np.searchsorted(middles, ends - 1e-12)
    stops[-1] = len(layer_weight)
    return np.asarray(stops, np.int64)


def _divide(problem: Problem, layer_weight: Floats, class_weight: Floats) -> Placement:
    class_of = {
        device.name: kind for kind, entry in enumerate(problem.classes) for device in entry.devices
    }
    kinds = [class_of[device.name] for device in problem.cluster.devices][: len(layer_weight)]
    stops = cut_in_proportion(layer_weight, class_weight[kinds])
    starts = np.concatenate([[0], stops[:-1]])
    return tuple(
        PlacedStage(int(start), int(stop) - 1, kind)
        for start, stop, kind in zip(starts, stops, kinds, strict=True)
        if stop > start
    )


class _ProportionalPlanner:
    """One placement, one evaluation; it fits or it does not."""

    def __init__(self, name: str, divide: Callable[[Problem], Placement], seed: int) -> None:
        self.name, self.seed = name, seed
        self._divide = divide

    def plan(self, problem: Problem, budget: Budget) -> Plan:
        """The plan that the rule gives.

        Raises:
            InfeasibleError: It does not fit; names the stage and the bytes.
        """
        problem = on_usable_devices(problem)
        kernel = kernel_tables(problem.tables)
        budget.spend()
        placement = self._divide(problem)
        code = encode(placement)
        if math.isinf(Goal.of(problem.job).cost(code, kernel)):
            raise InfeasibleError(f"{self.name}: {describe_misfit(problem, kernel, placement)}")
        return answer(problem, kernel, code, planner=self.name, seed=self.seed)


@register("even")
def even(seed: int = 0) -> _ProportionalPlanner:
    """The planner `even`, see `even_placement`."""
    return _ProportionalPlanner("even", even_placement, seed)


@register("memory-proportional")
def memory_proportional(seed: int = 0) -> _ProportionalPlanner:
    """The planner `memory-proportional`, see `memory_proportional_placement`."""
    return _ProportionalPlanner("memory-proportional", memory_proportional_placement, seed)


@register("speed-proportional")
def speed_proportional(seed: int = 0) -> _ProportionalPlanner:
    """The planner `speed-proportional`, see `speed_proportional_placement`."""
    return _ProportionalPlanner("speed-proportional", speed_proportional_placement, seed)


def describe_misfit(problem: Problem, kernel: KernelTables, placement: Placement) -> str:
    """Why a placement cannot be used: its worst stage and the bytes, or the floor it misses."""
    used = np.zeros(kernel.num_classes, np.int64)
    replicas_behind, worst, message = 0, 0.0, ""
    for stage in reversed(placement):
        entry, layers = problem.classes[stage.device_class], problem.profile.layers
        used[stage.device_class] += stage.replicas
        held = in_flight(kernel.num_micro_batches, kernel.is_gpipe, stage.replicas, replicas_behind)
        replicas_behind += stage.replicas
        covered = slice(stage.first_layer, stage.last_layer + 1)
        state = problem.tables.state_bytes[covered].sum()
        needed = state + held * problem.tables.activation_bytes[covered].sum()
        available = kernel.memory_bytes[stage.device_class]
        if needed - available > worst:
            worst = needed - available
            message = (
                f"the stage of layers {stage.first_layer}-{stage.last_layer} "
                f"({layers[stage.first_layer].name} to {layers[stage.last_layer].name}) needs "
                f"{bytes_text(needed)} on one {entry.name}, which has {bytes_text(available)}: "
                f"{bytes_text(worst)} too many"
            )
    for kind, entry in enumerate(problem.classes):
        if used[kind] > entry.count:
            return f"the placement needs {used[kind]} devices {entry.name}; there are {entry.count}"
    if message:
        return message
    step_time_s = evaluate(encode(placement)[None], kernel)[0][0]
    if step_time_s >= NO_LINK.latency_s:
        return "the placement needs a link between devices that have none"
    if problem.job.min_throughput_samples_per_s is None:
        return f"the placement takes {step_time_s:.4g} s a step: longer than what is planned for"
    reached = problem.job.global_batch_size / step_time_s
    return (
        f"the placement reaches {reached:.4g} samples/s; "
        f"the floor is {problem.job.min_throughput_samples_per_s:.4g}"
    )
