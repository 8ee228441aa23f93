"""Why the stages of a plan are carried out as they are: what one other choice would cost.

Of each stage one choice is exchanged, and the plan simulated: twice or half as many devices split
its layers (the same devices, in more or fewer replicas), its activations are kept, computed again
or offloaded, the optimizer state of all of its layers is whole or sharded. All else stays. Where
the size of micro-batches was left open, all that were looked at are told. Where devices are idle, a
plan with them is sought.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from heterps.micro_batches.place_result import PlaceResult
from heterps.planning.explanation import Alternative, ExplainedStage, Explanation
from heterps_agents.finishing.idle_devices import idle_classes
from heterps_configs.documents.plan import LayerRange, Plan
from heterps_configs.documents.stage import Stage
from heterps_configs.errors import HeterpsError
from heterps_envs.closed_form.placement import PlacedStage
from heterps_envs.options import Memory, StageOption, options_of
from heterps_envs.problem import Problem
from heterps_envs.simulator.binding import bound_plan
from heterps_envs.simulator.simulate import estimate
from heterps_envs.useful_options import useful_options

# Stages behind it are not looked at.
MOST_SECONDS = 30.0
NOTHING_TO_CHOOSE = (
    "there was nothing to choose: each stage is one device that keeps all; --tensor-parallel, "
    "--recompute, --shard-state and --offload open the choice"
)
NO_OPTIONS = "there was nothing to choose: the planner {} "
KEEPS_ALL = "places each stage on one device that keeps all"
OWN_WAY = "chooses how stages are carried out by its own cost"


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
        keeps_all = all(
            stage.degree == 1 and not stage.recompute_layers and not stage.offloaded_layers
            for stage in result.plan.stages
        )
        note = NO_OPTIONS.format(result.requested_planner) + (KEEPS_ALL if keeps_all else OWN_WAY)
        return Explanation(step_s, note=note)
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
                part.num_sharded_layers,
                tuple(found),
            )
        )
    return Explanation(step_s, tuple(stages), dropped=dropped)


@dataclass(frozen=True)
class _Part:
    """Replicas of the same layers that are carried out alike.

    Attributes:
        option: It shards state where one of its layers does.
        num_sharded_layers: Whose optimizer state is divided.
    """

    stages: tuple[Stage, ...]
    option: StageOption
    num_sharded_layers: int

    @property
    def is_partly_sharded(self) -> bool:
        """Whether state is divided of some layers, and whole of others."""
        return 0 < self.num_sharded_layers < len(self.stages[0].layers)


def _parts(problem: Problem, plan: Plan) -> list[_Part]:
    found: dict[tuple[int, int, StageOption], list[Stage]] = {}
    for stage in plan.stages:
        key = stage.first_layer, stage.last_layer, _option_of(problem, plan, stage)
        found.setdefault(key, []).append(stage)
    return [
        _Part(tuple(stages), key[2], len(_sharded(plan, stages[0])))
        for key, stages in sorted(found.items(), key=_order)
    ]


def _order(entry: tuple[tuple[int, int, StageOption], list[Stage]]) -> tuple[int, int]:
    return entry[0][:2]


def _option_of(problem: Problem, plan: Plan, stage: Stage) -> StageOption:
    memory: Memory = "keep"
    if stage.recompute_layers or stage.offloaded_layers:
        memory = "recompute" if stage.recompute_layers else "offload"
    is_sharded = bool(_sharded(plan, stage))
    return StageOption(problem.class_of[stage.devices[0]], stage.degree, memory, is_sharded)


def _sharded(plan: Plan, stage: Stage) -> frozenset[int]:
    return plan.sharded_layers.intersection(stage.layers)


def _is_near(part: _Part, option: StageOption, problem: Problem) -> bool:
    """Whether an option is the stage's with one other choice that its devices can make."""
    own = part.option
    if option.device_class != own.device_class:
        return False
    others = sum(a != b for a, b in zip(own[1:], option[1:], strict=True))
    # Where some layers are sharded, all of them are another choice.
    if others + (part.is_partly_sharded and option == own) != 1:
        return False
    if option.degree == own.degree:
        return option.memory != own.memory or len(part.stages) > 1
    ratio = max(option.degree, own.degree) / min(option.degree, own.degree)
    replicas, rest = divmod(len(part.stages) * own.degree, option.degree)
    return ratio == 2 and rest == 0 and 0 < replicas <= problem.job.num_micro_batches


def _alternative(result: PlaceResult, part: _Part, option: StageOption) -> Alternative:
    problem, plan, num_sharded = result.problem, result.plan, part.num_sharded_layers
    try:
        if option.degree != part.option.degree:
            plan = _regrouped(problem, plan, part, option)
        elif option.memory != part.option.memory:
            plan = _with_memory(plan, part.stages, option.memory)
        else:
            num_sharded = len(part.stages[0].layers) if option.shards_state else 0
            plan = _with_sharding(plan, part.stages[0], option.shards_state)
        shown = estimate(problem, plan)
    except HeterpsError:
        return Alternative(option, num_sharded, None)
    over = [used - shown.memory_limit_bytes[name] for name, used in shown.memory_bytes.items()]
    return Alternative(option, num_sharded, shown.step_time_s, max(0, *over))


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
    # A placement divides the state of all layers of a stage.
    shared = LayerRange.all_of(found.sharded_layers & plan.sharded_layers)
    return found.changed(overlaps_reduce=plan.overlaps_reduce, sharded_state=shared)


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
