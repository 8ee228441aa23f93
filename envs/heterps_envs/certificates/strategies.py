"""Plans whose stages are tensor-parallel groups, compute again, offload, or shard their state.

A stage's strategy changes its seconds and bytes, and nothing else of the closed form. So such a
plan has tables of its own, with a class for each of its stages.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from heterps_configs.documents.plan import Plan, Stage
from heterps_envs.certificates.definition import PlainStage
from heterps_envs.cost_tables import CostTables
from heterps_envs.problem import Problem
from heterps_envs.stage_tables import stage_tables


def has_strategies(plan: Plan) -> bool:
    """Whether any stage is more than layers on one device that keep all that they save."""
    return bool(plan.sharded_state) or any(
        stage.degree > 1 or stage.recompute_layers or stage.offloaded_layers
        for stage in plan.stages
    )


def replicas_are_alike(plan: Plan) -> bool:
    """Whether stages of equal layers are carried out in the same way."""
    found: dict[range, tuple[object, ...]] = {}
    return all(
        found.setdefault(stage.layers, _strategy(stage)) == _strategy(stage)
        for stage in plan.stages
    )


def _strategy(stage: Stage) -> tuple[object, ...]:
    again, away = set(stage.recompute_layers), set(stage.offloaded_layers)
    return stage.degree, stage.uneven_shares, again, away


def tables_of_plan(problem: Problem, plan: Plan, stages: Sequence[PlainStage]) -> CostTables:
    """The tables: class i is stage i, in the order of `stages`.

    Seconds and bytes are those of the device of a group that has most. A message takes as many
    copies as the larger group is times the smaller one in one direction, and one in the other: on
    average half of that sum.

    Args:
        problem: What the plan answers.
        plan: With equal cuts in all pipelines and replicas that are alike.
        stages: Its stages, front first, with their device classes.
    """
    kinds = [stage.kind for stage in stages]
    if problem.merges_nodes:
        ranges = [(stage.start, stage.stop - 1) for stage in stages]
        links = stage_tables(problem, plan, ranges)
        latency_s, inverse = links.latency_s, links.inverse_bandwidth_s_per_byte.copy()
    else:
        here = np.ix_(kinds, kinds)
        latency_s = problem.tables.latency_s[here]
        inverse = problem.tables.inverse_bandwidth_s_per_byte[here].copy()
    size, whole = (problem.profile.num_layers, len(stages)), problem.tables
    forward_s, backward_s, optimizer_s = np.zeros((3, *size))
    state, gradient, kept = np.zeros((3, problem.profile.num_layers))
    memory_bytes, examples = np.zeros(len(stages)), [_example(plan, stage) for stage in stages]
    for index, (stage, example) in enumerate(zip(stages, examples, strict=True)):
        part, own = slice(stage.start, stage.stop), problem.for_stage(example)
        tables, kind = own.tables, stage.kind
        again, away = list(example.recompute_layers), list(example.offloaded_layers)
        forward_s[part, index] = tables.forward_s[part, kind]
        backward_s[part, index] = tables.backward_s[part, kind]
        backward_s[again, index] += tables.forward_s[again, kind]
        forward_s[away, index] += own.offload.forward_s[away, kind]
        backward_s[away, index] += own.offload.backward_s[away, kind]
        shards = [
            stage.replicas if layer in plan.sharded_layers else 1
            for layer in range(stage.start, stage.stop)
        ]
        optimizer_s[part, index] = tables.optimizer_s[part, kind] / shards
        parameters = np.array([layer.num_parameters for layer in own.profile.layers[part]], float)
        saved = parameters * problem.job.optimizer_bytes_per_parameter * (1 - 1 / np.array(shards))
        state[part] = tables.state_bytes[part] - saved
        gradient[part] = tables.gradient_bytes[part]
        kept[part] = tables.activation_bytes[part]
        if again or away:
            memory = own.layer_memory
            kept[part] = 0.0
            kept[stage.start] = memory.kept_bytes(stage.start, stage.stop - 1, kind, again, away)
            state[stage.start] += max([0.0, *memory.own_bytes[again, kind].tolist()])
            state[stage.start] += 2 * max([0.0, *own.offload.moved_bytes[away, kind].tolist()])
        memory_bytes[index] = tables.memory_bytes[kind]
    for index, (one, two) in enumerate(pairwise(example.degree for example in examples)):
        inverse[index, index + 1] *= (math.ceil(one / two) + math.ceil(two / one)) / 2
    return replace(
        whole,
        forward_s=forward_s,
        backward_s=backward_s,
        optimizer_s=optimizer_s,
        state_bytes=state,
        gradient_bytes=gradient,
        activation_bytes=kept,
        device_count=np.array([stage.replicas for stage in stages]),
        memory_bytes=memory_bytes,
        price_usd_per_hour=whole.price_usd_per_hour[kinds]
        * [example.degree for example in examples],
        latency_s=latency_s,
        inverse_bandwidth_s_per_byte=inverse,
        rings=None,
    )


def _example(plan: Plan, wanted: PlainStage) -> Stage:
    """One of the plan's stages of these layers; all are alike."""
    return next(stage for stage in plan.stages if stage.first_layer == wanted.start)
