"""Interleaved plans: the stages of a finished plan, cut into several chunks for each device.

Planners answer with one stage for each device. Under the schedule `interleaved` that is 1F1B; with
v chunks on each device the pipeline fills v times as fast, at the price of v times as many messages
and of more micro-batches in flight. So the finished plan is cut anew: the model into v parts of
equal work, every part over the plan's devices in their order, as evenly as they are fast. A hill
climb then moves the cuts by a layer or two. The simulator is the judge, of time and of memory.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from heterps_agents.interface.planner import Budget
from heterps_configs.documents.plan import LayerRange, Pipeline, Plan
from heterps_configs.documents.stage import Stage
from heterps_envs.closed_form.bounds import bound_for
from heterps_envs.closed_form.placement import PlacedStage, Placement, placement_of
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import feasible_step_time_s

CHUNKS = (2, 3, 4)
MOVES = (1, -1, 2, -2)
# Cuts that are tried, those of the most promising number of chunks first.
MAX_SIMULATIONS, MAX_SECONDS = 300, 2.0
# A plan with chunks has to be this much faster, and so does a moved cut.
GAIN = 1 - 1e-4


def interleave(problem: Problem, plan: Plan, budget: Budget) -> Plan:
    """The plan with several stages on each device, where that is faster and fits; else the plan.

    Args:
        problem: What was asked.
        plan: A bound placement with one stage for each device; any other plan comes back as it is.
        budget: Each simulation counts as an evaluation.
    """
    placement = placement_of(problem, plan)
    if problem.job.schedule != "interleaved" or placement is None or len(placement) < 2:
        return plan
    limit = budget.part(MAX_SIMULATIONS, MAX_SECONDS)
    starts = []
    for num_chunks in CHUNKS:
        cuts = _even_cuts(problem, placement, num_chunks)
        if cuts is not None:
            start_s = feasible_step_time_s(problem, _with_chunks(plan, num_chunks, cuts))
            starts.append((start_s, num_chunks, cuts))
    best, best_s = plan, feasible_step_time_s(problem, plan)
    for start_s, num_chunks, start in sorted(starts):
        cuts, cost_s = _climb(problem, plan, num_chunks, start, start_s, limit)
        if cost_s < best_s * GAIN:
            best, best_s = _with_chunks(plan, num_chunks, cuts), cost_s
    budget.spend(limit.evaluations_used)
    if best is plan:
        return plan
    return best.changed(bound=bound_for(problem, best), predicted_step_time_s=best_s)


def _even_cuts(problem: Problem, placement: Placement, num_chunks: int) -> list[int] | None:
    """First layers of the stages behind the first; None where there are too few layers."""
    num_layers, num_stages = problem.profile.num_layers, num_chunks * len(placement)
    if num_stages > num_layers:
        return None
    # Stages in the order of the model: every device's speed once in each chunk.
    seconds = [max(_pass_s(problem, stage), 1e-30) for stage in placement]
    speed = [stage.replicas / each for stage, each in zip(placement, seconds, strict=True)]
    edges = np.cumsum(np.tile(speed, num_chunks))
    work = problem.tables.compute_s.mean(axis=1)
    middle = (np.cumsum(work) - work / 2) / max(work.sum(), 1e-30)
    cuts: list[int] = np.searchsorted(middle, edges[:-1] / edges[-1]).tolist()
    # At least one layer for each stage.
    for index in range(len(cuts)):
        cuts[index] = max(cuts[index], (cuts[index - 1] if index else 0) + 1)
    for index in range(len(cuts) - 1, -1, -1):
        behind = cuts[index + 1] if index + 1 < len(cuts) else num_layers
        cuts[index] = min(cuts[index], behind - 1)
    return cuts


def _pass_s(problem: Problem, stage: PlacedStage) -> float:
    """Of one micro-batch through the whole model, forth and back, as a stage computes."""
    times = problem.at_degree(stage.degree).layer_times
    forward_s, backward_s = (
        float(each[:, stage.device_class].sum()) for each in (times.forward_s, times.backward_s)
    )
    return (1 + stage.recompute) * forward_s + backward_s


def _climb(
    problem: Problem, plan: Plan, num_chunks: int, cuts: list[int], best_s: float, limit: Budget
) -> tuple[list[int], float]:
    """Moves cuts while that shortens the step; returns them and the step time."""
    improved = True
    while improved:
        improved = False
        for index in range(len(cuts)):
            for move in MOVES:
                moved = [*cuts[:index], cuts[index] + move, *cuts[index + 1 :]]
                if not all(a < b for a, b in pairwise([0, *moved, plan.num_layers])):
                    continue
                if limit.is_exhausted:
                    return cuts, best_s
                limit.spend()
                cost_s = feasible_step_time_s(problem, _with_chunks(plan, num_chunks, moved))
                if cost_s < best_s * GAIN:
                    cuts, best_s, improved = moved, cost_s, True
    return cuts, best_s


def _with_chunks(plan: Plan, num_chunks: int, cuts: list[int]) -> Plan:
    """Every route passes its devices once for each chunk; chunks are carried out as stages were."""
    edges = list(pairwise([0, *cuts, plan.num_layers]))
    first_layers = sorted({stage.first_layer for stage in plan.stages})
    position = {stage.name: first_layers.index(stage.first_layer) for stage in plan.stages}
    stages = tuple(
        _chunk(stage, chunk, edges[chunk * len(first_layers) + position[stage.name]])
        for chunk in range(num_chunks)
        for stage in plan.stages
    )
    sharded = tuple(
        LayerRange(first_layer=start, last_layer=stop - 1)
        for number, (start, stop) in enumerate(edges)
        if first_layers[number % len(first_layers)] in plan.sharded_layers
    )
    pipelines = tuple(
        Pipeline(
            stages=tuple(
                f"{name}c{chunk}" for chunk in range(num_chunks) for name in pipeline.stages
            ),
            micro_batches=pipeline.micro_batches,
        )
        for pipeline in plan.pipelines
    )
    return plan.changed(stages=stages, pipelines=pipelines, sharded_state=sharded)


def _chunk(stage: Stage, chunk: int, edges: tuple[int, int]) -> Stage:
    """Layers from one edge to the other, all kept as those of the stage are."""
    layers = tuple(range(*edges))
    return stage.changed(
        name=f"{stage.name}c{chunk}",
        first_layer=layers[0],
        last_layer=layers[-1],
        recompute_layers=layers if stage.recompute_layers else (),
        offloaded_layers=layers if stage.offloaded_layers else (),
    )
