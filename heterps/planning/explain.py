"""Why the stages of a plan are carried out as they are: what one other choice would cost.

Of each stage one choice is exchanged, and the plan simulated: twice or half as many devices split
its layers (the same devices, in more or fewer replicas), its activations are kept, computed again
or offloaded, its optimizer state is whole or sharded. All else stays. Where the size of
micro-batches was left open, all that were looked at are told. Where devices are idle, a plan with
them is sought.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from heterps.micro_batches.place_result import PlaceResult, TriedSize
from heterps_agents.finishing.idle_devices import IdleClass, idle_classes
from heterps_configs.documents.plan import LayerRange, Plan, Stage
from heterps_configs.errors import HeterpsError
from heterps_envs.closed_form.placement import PlacedStage
from heterps_envs.options import Memory, StageOption, options_of
from heterps_envs.problem import Problem
from heterps_envs.simulator.binding import bound_plan
from heterps_envs.simulator.simulate import estimate
from heterps_envs.useful_options import DroppedOption, useful_options

# Stages behind it are not looked at.
MOST_SECONDS = 30.0
NOTHING_TO_CHOOSE = (
    "there was nothing to choose: each stage is one device that keeps all; --tensor-parallel, "
    "--recompute, --shard-state and --offload open the choice"
)
NO_OPTIONS = (
    "there was nothing to choose: the planner {} places each stage on one device that keeps all"
)


@dataclass(frozen=True)
class Alternative:
    """A stage with one other choice.

    Attributes:
        option: What it would be.
        step_time_s: Simulated, of the whole plan; None where it cannot be bound to devices.
        over_bytes: That the fullest device would lack; 0 where all fits.
    """

    option: StageOption
    step_time_s: float | None
    over_bytes: int = 0


@dataclass(frozen=True)
class ExplainedStage:
    """Equal replicas of some layers, and what other choices would cost, the best first."""

    first_layer: int
    last_layer: int
    device_type: str
    num_replicas: int
    option: StageOption
    alternatives: tuple[Alternative, ...]

    @property
    def runner_up(self) -> Alternative | None:
        """The fastest that fits, else the one that lacks least; None where there is none."""
        return self.alternatives[0] if self.alternatives else None


@dataclass(frozen=True)
class Explanation:
    """What `heterps place --explain` shows.

    Attributes:
        step_time_s: Of the plan.
        stages: Front to back; empty where there was nothing to choose.
        note: Why there are none, or not all.
        dropped: Options that planners did not try, and why.
        sizes: Of micro-batches, where several were looked at.
        micro_batch_size: Of the plan.
        idle: Why devices have nothing to do, by class.
    """

    step_time_s: float
    stages: tuple[ExplainedStage, ...] = ()
    note: str = ""
    dropped: tuple[DroppedOption, ...] = ()
    sizes: tuple[TriedSize, ...] = ()
    micro_batch_size: int = 1
    idle: tuple[IdleClass, ...] = ()

    def to_mapping(self) -> dict[str, Any]:
        """The JSON contract of `heterps place --explain --json`."""
        return {
            "note": self.note,
            "stages": [
                {
                    "first_layer": stage.first_layer,
                    "last_layer": stage.last_layer,
                    "device_type": stage.device_type,
                    "replicas": stage.num_replicas,
                    "option": _words(stage.option),
                    "alternatives": [
                        {
                            "option": _words(each.option),
                            "step_time_s": each.step_time_s,
                            "over_bytes": each.over_bytes,
                        }
                        for each in stage.alternatives
                    ],
                }
                for stage in self.stages
            ],
            "left_out": [
                {
                    "option": _words(each.option),
                    "device_class": each.option.device_class,
                    "by": each.by and _words(each.by),
                    "why": each.why,
                }
                for each in self.dropped
            ],
            "micro_batch_sizes": [
                {name: _number(value) for name, value in each._asdict().items()}
                | {"is_chosen": each.size == self.micro_batch_size}
                for each in self.sizes
            ],
            "idle": [each.to_mapping() for each in self.idle],
        }


def explain(problem: Problem, result: PlaceResult) -> Explanation:
    """Exchanges one choice of one stage after the other; seeks plans with idle devices.

    Args:
        problem: What was asked, with its strategy; the size of its micro-batches does not count.
        result: What a planner answered.
    """
    found = _of_stages(problem, result)
    return replace(
        found,
        sizes=result.tried_sizes,
        micro_batch_size=result.plan.job.micro_batch_size,
        idle=idle_classes(result.problem, result.plan),
    )


def _of_stages(problem: Problem, result: PlaceResult) -> Explanation:
    step_s = result.estimate.step_time_s
    if problem.strategy.is_plain:
        return Explanation(step_s, note="" if result.tried_sizes else NOTHING_TO_CHOOSE)
    if result.problem.strategy.is_plain:
        return Explanation(step_s, note=NO_OPTIONS.format(result.requested_planner))
    started, stages = time.monotonic(), list[ExplainedStage]()
    parts = _parts(result.problem, result.plan)
    allowed = options_of(result.problem, result.problem.strategy)
    dropped = useful_options(result.problem).dropped
    for part in parts:
        if time.monotonic() - started > MOST_SECONDS:
            left = len(parts) - len(stages)
            note = f"{left} more stages were not looked at: that takes too long"
            return Explanation(step_s, tuple(stages), note, dropped)
        found = [
            _alternative(result, part, option)
            for option in allowed
            if _is_near(part, option, result.problem)
        ]
        found.sort(key=lambda each: (each.step_time_s is None, each.over_bytes, each.step_time_s))
        stages.append(
            ExplainedStage(
                part.stages[0].first_layer,
                part.stages[0].last_layer,
                result.problem.classes[part.option.device_class].type.name,
                len(part.stages),
                part.option,
                tuple(found),
            )
        )
    return Explanation(step_s, tuple(stages), dropped=dropped)


@dataclass(frozen=True)
class _Part:
    """Replicas of the same layers that are carried out alike."""

    stages: tuple[Stage, ...]
    option: StageOption


def _parts(problem: Problem, plan: Plan) -> list[_Part]:
    found: dict[tuple[int, int, StageOption], list[Stage]] = {}
    for stage in plan.stages:
        key = stage.first_layer, stage.last_layer, _option_of(problem, plan, stage)
        found.setdefault(key, []).append(stage)
    return [_Part(tuple(stages), key[2]) for key, stages in sorted(found.items(), key=_order)]


def _order(entry: tuple[tuple[int, int, StageOption], list[Stage]]) -> tuple[int, int]:
    return entry[0][:2]


def _option_of(problem: Problem, plan: Plan, stage: Stage) -> StageOption:
    memory: Memory = "keep"
    if stage.recompute_layers or stage.offloaded_layers:
        memory = "recompute" if stage.recompute_layers else "offload"
    is_sharded = stage.first_layer in plan.sharded_layers
    return StageOption(problem.class_of[stage.devices[0]], stage.degree, memory, is_sharded)


def _is_near(part: _Part, option: StageOption, problem: Problem) -> bool:
    """Whether an option is the stage's with one other choice that its devices can make."""
    own = part.option
    if option.device_class != own.device_class:
        return False
    if sum(a != b for a, b in zip(own[1:], option[1:], strict=True)) != 1:
        return False
    if option.degree == own.degree:
        return option.memory != own.memory or len(part.stages) > 1
    ratio = max(option.degree, own.degree) / min(option.degree, own.degree)
    replicas, rest = divmod(len(part.stages) * own.degree, option.degree)
    return ratio == 2 and rest == 0 and 0 < replicas <= problem.job.num_micro_batches


def _alternative(result: PlaceResult, part: _Part, option: StageOption) -> Alternative:
    problem, plan = result.problem, result.plan
    try:
        if option.degree != part.option.degree:
            plan = _regrouped(problem, plan, part, option)
        elif option.memory != part.option.memory:
            plan = _with_memory(plan, part.stages, option.memory)
        else:
            plan = _with_sharding(plan, part.stages[0], option.shards_state)
        shown = estimate(problem, plan)
    except HeterpsError:
        return Alternative(option, None)
    over = [used - shown.memory_limit_bytes[name] for name, used in shown.memory_bytes.items()]
    return Alternative(option, shown.step_time_s, max(0, *over))


def _with_memory(plan: Plan, stages: Sequence[Stage], memory: Memory) -> Plan:
    names = {stage.name for stage in stages}
    return plan.changed(
        stages=tuple(
            stage.changed(
                recompute_layers=tuple(stage.layers) if memory == "recompute" else (),
                offloaded_layers=tuple(stage.layers) if memory == "offload" else (),
            )
            if stage.name in names
            else stage
            for stage in plan.stages
        )
    )


def _with_sharding(plan: Plan, stage: Stage, is_sharded: bool) -> Plan:
    layers = plan.sharded_layers.difference(stage.layers)
    layers = layers.union(stage.layers) if is_sharded else layers
    return plan.changed(sharded_state=LayerRange.all_of(layers))


def _regrouped(problem: Problem, plan: Plan, part: _Part, option: StageOption) -> Plan:
    """The devices of a stage in groups of another size; all are bound anew."""
    placement = list(_placed(problem, plan, part, option))
    found = bound_plan(problem, placement, planner=plan.planner, seed=plan.seed)
    return found.changed(overlaps_reduce=plan.overlaps_reduce)


def _placed(
    problem: Problem, plan: Plan, part: _Part, option: StageOption
) -> Iterator[PlacedStage]:
    for each in _parts(problem, plan):
        is_it = each == part
        chosen = option if is_it else each.option
        first = each.stages[0]
        yield PlacedStage(
            first.first_layer,
            first.last_layer,
            chosen.device_class,
            replicas=len(each.stages) * each.option.degree // chosen.degree,
            degree=chosen.degree,
            recompute=chosen.memory == "recompute",
            offload=chosen.memory == "offload",
            shards_state=chosen.shards_state,
        )


def _number(value: Any) -> Any:
    """As JSON has it: what is not finite is none."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _words(option: StageOption) -> dict[str, Any]:
    return {
        "tensor_parallel": option.degree,
        "memory": option.memory,
        "shards_state": option.shards_state,
    }
