"""Copies of the whole model on unlike devices: the fastest few, each with its share.

Where links between devices are slow beside what the model computes, and it fits on each of them,
nothing is better; searches that begin at chains come there by many small steps, if at all.
"""

from __future__ import annotations

import math

import numpy as np

from heterps_agents.asymmetric.judged import Judge, Judged
from heterps_agents.asymmetric.shares import least_longest
from heterps_agents.asymmetric.weave import Lane, Part, Weave, plan_of_weave
from heterps_agents.interface.planner import Budget
from heterps_configs.documents.plan import Plan
from heterps_envs.closed_form.placement import PlacedStage
from heterps_envs.problem import Problem
from heterps_envs.simulator.binding import bound_plan

# Of more devices each copy has few micro-batches, and sums of all weights take long. Where so many
# more devices in a row have not helped, still more are not tried.
MOST_COPIES, MOST_MISSES = 8, 2


def best_copies(problem: Problem, budget: Budget) -> Plan | None:
    """The best plan of copies on the fastest 1, 2, .. devices; None where none fits.

    Args:
        problem: What was asked.
        budget: Simulations are its evaluations; its end ends this. Plans that cost as much as it
            knows need not be found.
    """
    seconds = problem.tables.compute_s.sum(axis=0)
    total, layers = problem.job.num_micro_batches, problem.profile.num_layers
    speeds = {name: float(seconds[problem.class_of[name]]) for name in problem.device_named}
    fastest = sorted(speeds, key=lambda name: (speeds[name], name))[:MOST_COPIES]
    whole = PlacedStage(0, layers - 1, problem.class_of[fastest[0]], 1)
    known = bound_plan(problem, (whole,), planner="auto", seed=0)
    misses, steps = 0, np.arange(total + 1, dtype=np.float64)
    judge, best = Judge(problem, budget), Judged(math.inf, known)
    for count in range(1, len(fastest) + 1):
        names = fastest[:count]
        shares = least_longest([speeds[name] * steps for name in names], total)
        if shares is None or misses == MOST_MISSES or judge.is_exhausted:
            break
        lanes = (
            Lane(share, (Part(layers, ((name,),)),))
            for name, share in zip(names, shares, strict=True)
        )
        plan = plan_of_weave(Weave((tuple(lanes),)), known)
        found = judge.judged(plan, min(best.cost, budget.known_cost))
        if count == 1 and math.isinf(found.cost):
            break  # one device has no room for the model
        misses = 0 if found.cost < best.cost else misses + 1
        best = min(best, found, key=lambda each: each.cost)
    return None if best.cost >= budget.known_cost else best.plan
