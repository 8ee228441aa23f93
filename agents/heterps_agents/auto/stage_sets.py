"""Plans from the bound: sets of stages that it cannot rule out, as lanes side by side.

Searches that begin at chains come to a better set of stages by small steps, each of which must look
good to a formula. The bound (`heterps_envs.step_bounds.whole_plans`) goes through all sets. What is
left of them at few seconds has the right devices on the right layers, or the bound lacks something;
which of both, the simulator says.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise, product
from typing import NamedTuple

from heterps_agents.asymmetric.candidates import groups_of, memories_of
from heterps_agents.asymmetric.descent import Descent, Patience
from heterps_agents.asymmetric.estimates import Estimates
from heterps_agents.asymmetric.judged import Judge, Judged
from heterps_agents.asymmetric.moves import Moves
from heterps_agents.asymmetric.weave import Block, Group, Lane, Part, Weave, plan_of_weave
from heterps_agents.interface.planner import Budget
from heterps_configs.documents.plan import Plan
from heterps_envs.options import Memory
from heterps_envs.problem import Problem
from heterps_envs.step_bounds.executable import goes_through_stages, may_be_too_few
from heterps_envs.step_bounds.surviving import StageSet, StageSpan, surviving_sets

# Small changes begin at so many sets, that take so many times the known plan's time at most.
MOST_STARTS, NEAR = 3, 1.3
PATIENCE = Patience(200_000, 40, 1.1)
# In a hurry none are looked for that take so many times what the bound roughly is: hardly any is
# left there that says something.
FAR = 1.5
# Of the memory that the rule of planners leaves, what lanes may take: that rule is careful.
ROOM = 1.3
# Stages that may be simulated in all.
MOST_STAGES = 6000


class _Start(NamedTuple):
    weave: Weave
    judged: Judged


def best_of_stage_sets(problem: Problem, known: Plan, budget: Budget) -> Plan | None:
    """The best plan of sets of stages that the bound does not rule out.

    Args:
        problem: What was asked, with its size of micro-batches.
        known: A plan, simulated.
        budget: Simulations are its evaluations; its end ends this.

    Returns:
        A plan that is simulated in less than the known one; None where there is none, of many
        devices, and where the price counts.
    """
    assert known.predicted_step_time_s is not None, "it was simulated"
    if not goes_through_stages(problem) or len(problem.cluster.devices) == 1:
        return None
    known_s = known.predicted_step_time_s
    if budget.has_time_limit and not may_be_too_few(problem, known_s, FAR):
        return None
    sets = surviving_sets(problem, known_s, lambda: budget.is_exhausted)
    judge, estimates = Judge(problem, budget, MOST_STAGES), Estimates(problem, ROOM)
    degrees = {span.degree for each in sets for span in each}
    moves = Moves(
        estimates, groups_of(problem, known, degrees), memories_of(problem),
        shards=problem.strategy.shard_state == "auto",
    )  # fmt: skip
    starts = sorted(_starts(problem, known, sets, moves, judge), key=lambda each: each.judged.cost)
    descent, best = Descent(judge, estimates, moves, PATIENCE), Judged(known_s, known)
    for start in starts[:MOST_STARTS]:
        if start.judged.cost <= NEAR * known_s:
            found = descent.best_from(start.weave, start.judged)
            best = min(best, found, key=lambda each: each.cost)
    return None if best.plan is known else best.plan.changed(seed=known.seed)


def _starts(
    problem: Problem, known: Plan, sets: list[StageSet], moves: Moves, judge: Judge
) -> Iterator[_Start]:
    """Sets as plans that fit, with and without divided state and layers computed again."""
    every = frozenset(range(problem.profile.num_layers))
    divided = [frozenset[int]()]
    if problem.strategy.shard_state == "auto":
        divided.append(every)
    for spans, memory in product(sets, memories_of(problem)):
        weave = weave_of_set(problem, spans, memory)
        weave = None if weave is None else _shared(weave, moves, problem)
        if weave is None:
            continue
        for sharded in divided:
            if judge.is_exhausted:
                return
            own = weave._replace(sharded=sharded)
            judged = judge.judged_with_sums(plan_of_weave(own, known))
            if math.isfinite(judged.cost):
                yield _Start(own, judged)


def _shared(weave: Weave, moves: Moves, problem: Problem) -> Weave | None:
    """With micro-batches as lanes are done with them; None where they are too few."""
    if max(map(len, weave.blocks)) > problem.job.num_micro_batches:
        return None
    for number in range(len(weave.blocks)):
        weave = moves.shared(weave, number)
    return weave


def weave_of_set(problem: Problem, spans: StageSet, memory: Memory) -> Weave | None:
    """A set of stages as blocks of lanes, each stage near those in front of it.

    Args:
        problem: With enough devices of each class.
        spans: The set.
        memory: What all stages do with activations.

    Returns:
        None where stages are shared by lanes, or no node has room for a group.
    """
    groups = _groups(problem, spans)
    if groups is None:
        return None
    stages = sorted(zip(spans, groups, strict=True), key=lambda stage: stage[0][:2])
    num_layers = problem.profile.num_layers
    inside = {edge for span in spans for edge in range(span.first_layer + 1, span.stop)}
    edges = [edge for edge in range(num_layers + 1) if edge not in inside]
    blocks = list[Block]()
    for first, stop in pairwise(edges):
        lanes = list[list[Part]]()
        for span, group in stages:
            if not first <= span.first_layer < stop:
                continue
            part = Part(span.stop, (group,), memory)
            if span.first_layer == first:
                lanes.append([part])
                continue
            front = next((lane for lane in lanes if lane[-1].stop == span.first_layer), None)
            if front is None:
                return None
            front.append(part)
        if any(lane[-1].stop != stop for lane in lanes):
            return None
        blocks.append(tuple(Lane(1, tuple(parts)) for parts in lanes))
    return Weave(tuple(blocks))


def _groups(problem: Problem, spans: StageSet) -> list[Group] | None:
    """Devices of each stage, on the node that messages from in front of it reach soonest."""
    free: dict[tuple[int, str], list[str]] = defaultdict(list)
    for name, device in problem.device_named.items():
        free[problem.class_of[name], device.node].append(name)
    found = dict[int, Group]()
    for index in sorted(range(len(spans)), key=lambda at: spans[at].first_layer):
        span = spans[index]
        fronts = [found[at][0] for at in found if spans[at].stop == span.first_layer]
        rooms = [
            names
            for (kind, _), names in free.items()
            if kind == span.device_class and len(names) >= span.degree
        ]
        if not rooms:
            return None
        names = min(rooms, key=lambda own: (_message_s(problem, fronts, own[0], span), len(own)))
        found[index] = tuple(names[: span.degree])
        del names[: span.degree]
    return [found[index] for index in range(len(spans))]


def _message_s(problem: Problem, fronts: list[str], name: str, span: StageSpan) -> float:
    if not fronts:
        return 0.0
    num_bytes = float(problem.tables.output_bytes[span.first_layer - 1])
    return sum(problem.link(front, name).transfer_s(num_bytes) for front in fronts)
