"""Planners that only divide: one stage for every device, in the order of the cluster file.

Where options are open, one stage for every group of neighbours: all of one degree and one memory
action, the best such by the closed form.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_agents.interface.answer import answer
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.question import Question
from heterps_agents.interface.registry import register
from heterps_configs.documents.cluster import NO_LINK
from heterps_configs.documents.plan import Plan
from heterps_configs.errors import InfeasibleError
from heterps_configs.units import bytes_text
from heterps_envs.arrays import Code, Floats
from heterps_envs.closed_form.formula import evaluate
from heterps_envs.closed_form.kernel_tables import KernelTables
from heterps_envs.closed_form.objective import code_of
from heterps_envs.closed_form.placement import Placement, decode, encode
from heterps_envs.closed_form.stage_formula import in_flight
from heterps_envs.closed_form.usable import on_usable_devices
from heterps_envs.cost_tables import CostTables
from heterps_envs.problem import Problem
from heterps_envs.useful_options import with_columns


class Weights(NamedTuple):
    """What is divided, and who gets how much of it.

    Attributes:
        layers: (L,) of the layers.
        options: (O,) of a stage of each option.
    """

    layers: Floats
    options: Floats


Rule = Callable[[CostTables], Weights]


def by_count(tables: CostTables) -> Weights:
    """Equally many layers for every stage, whether they fit or not."""
    return Weights(np.ones(tables.num_layers), np.ones(tables.num_options))


def by_memory(tables: CostTables) -> Weights:
    """Weights, gradients and optimizer state in proportion to the memory of a device."""
    held = tables.stage_options.state_bytes + tables.stage_options.sharded_bytes
    return Weights(held[:, 0].copy(), np.maximum(tables.memory_bytes, 0.0))


def by_speed(tables: CostTables) -> Weights:
    """Compute in proportion to speed: the inverse of the time for the whole model."""
    # What takes no time for the whole model is as fast as the fastest that takes some.
    whole_s = tables.compute_s.sum(axis=0)
    least_s = whole_s[whole_s > 0].min(initial=1.0)
    whole_s = np.maximum(whole_s, least_s)
    return Weights((tables.compute_s / whole_s).mean(axis=1), least_s / whole_s)


RULES: tuple[Rule, ...] = (by_count, by_memory, by_speed)


def divided(problem: Problem, question: Question, rule: Rule) -> Code:
    """Code of the division by a rule; of those with one degree and memory action the cheapest.

    Args:
        problem: What is asked.
        question: The same for searches. An evaluation is spent on each; on a budget that is too
            small, on the first alone.
        rule: Of the division.
    """
    left, codes = question.budget.evaluations_left, list[Code]()
    for kept in _ways(question)[: None if left is None else max(1, left)]:
        codes.append(_divided(problem, question.tables, kept, rule))
    question.budget.spend(len(codes))
    return codes[0] if len(codes) == 1 else question.cheapest(codes)


def _ways(question: Question) -> list[list[int]]:
    """Lists of options, one for each class: of one degree and memory action where it has such."""
    options = question.options
    if not options:
        return [list(range(question.tables.num_classes))]

    def nearest(kind: int, degree: int, memory: str) -> int:
        own = [index for index, option in enumerate(options) if option.device_class == kind]
        return min(
            own,
            key=lambda index: (
                options[index].shards_state,
                options[index].memory != memory,
                options[index].degree > degree,
                abs(options[index].degree - degree),
            ),
        )

    kinds = sorted({option.device_class for option in options})
    wanted = dict.fromkeys((option.degree, option.memory) for option in options)
    found = ([nearest(kind, *way) for kind in kinds] for way in wanted)
    return list({tuple(kept): kept for kept in found}.values())


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
    shares = device_weight if device_weight.sum() > 0 else np.ones_like(device_weight)
    ends = np.cumsum(shares) / shares.sum()
    stops = np.searchsorted(middles_of(layer_weight), ends - 1e-12)
    stops[-1] = len(layer_weight)
    return np.asarray(stops, np.int64)


def middles_of(layer_weight: Floats) -> Floats:
    """(L,) shares of all weight in front of the middle of each layer, whose (L,) weights are given.

    Where none has any, all have the same.
    """
    weight = layer_weight if layer_weight.sum() > 0 else np.ones_like(layer_weight)
    return np.asarray((np.cumsum(weight) - weight / 2) / weight.sum())


def _divided(problem: Problem, tables: CostTables, kept: list[int], rule: Rule) -> Code:
    """A stage on each group of neighbours, in the order of the cluster file.

    Args:
        problem: What is divided.
        tables: With all options.
        kept: The option of each class that has one.
        rule: Of the division.
    """
    weights = rule(with_columns(tables, kept))
    columns = _groups(problem, tables, kept)[: tables.num_layers]
    stops = cut_in_proportion(weights.layers, weights.options[columns])
    longer = np.diff(stops, prepend=0) > 0
    kinds = np.array(kept)[columns]
    stages = np.stack([stops, kinds, np.ones_like(stops)], axis=1)[longer]
    return code_of(np.ascontiguousarray(stages, dtype=np.int64), len(stages))


def _groups(problem: Problem, tables: CostTables, kept: list[int]) -> list[int]:
    """For each group of devices, which of the kept options it has."""
    options, class_of = tables.stage_options, problem.class_of
    column = {int(options.class_of_option[option]): index for index, option in enumerate(kept)}
    waiting: Counter[tuple[int, str]] = Counter()
    found = []
    for device in problem.cluster.devices:
        index, place = column.get(class_of[device.name]), (class_of[device.name], device.node)
        waiting[place] += 1
        if index is not None and waiting[place] == options.devices_of_option[kept[index]]:
            found.append(index)
            waiting[place] = 0
    return found


class _ProportionalPlanner:
    """One placement for each degree and memory action; it fits or it does not."""

    chooses_options = True

    def __init__(self, name: str, rule: Rule, seed: int) -> None:
        self.name, self.seed = name, seed
        self._rule = rule

    def plan(self, problem: Problem, budget: Budget) -> Plan:
        """The plan that the rule gives.

        Raises:
            InfeasibleError: It does not fit; names the stage and the bytes.
        """
        problem = on_usable_devices(problem) if problem.strategy.is_plain else problem
        question = Question.of(problem, budget, self.seed)
        code, options = divided(problem, question, self._rule), question.options
        if not options and math.isinf(question.cost(code)):
            reason = describe_misfit(problem, question.kernel, decode(code))
            raise InfeasibleError(f"{self.name}: {reason}")
        return answer(
            problem, question.kernel, code, planner=self.name, seed=self.seed, options=options
        )


@register("even")
def even(seed: int = 0) -> _ProportionalPlanner:
    """The planner `even`, see `by_count`."""
    return _ProportionalPlanner("even", by_count, seed)


@register("memory-proportional")
def memory_proportional(seed: int = 0) -> _ProportionalPlanner:
    """The planner `memory-proportional`, see `by_memory`."""
    return _ProportionalPlanner("memory-proportional", by_memory, seed)


@register("speed-proportional")
def speed_proportional(seed: int = 0) -> _ProportionalPlanner:
    """The planner `speed-proportional`, see `by_speed`."""
    return _ProportionalPlanner("speed-proportional", by_speed, seed)


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
