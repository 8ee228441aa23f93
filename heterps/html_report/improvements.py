"""What would help most: faster links, more memory, another node; each is planned anew.

Of each change the plan itself is simulated, and what short searches from it find: the step time is
one that was found, so the change may bring more. What the searches find without any change is the
first row, and what the others are compared with.
"""

from __future__ import annotations

import math
import time
from typing import NamedTuple

from heterps.html_report.changes import changes, price_usd_per_hour
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.question import Question
from heterps_agents.search.annealing import polish
from heterps_configs.documents.cluster import Cluster
from heterps_configs.documents.job import Strategy
from heterps_configs.documents.plan import Plan
from heterps_configs.errors import HeterpsError
from heterps_envs.arrays import Code
from heterps_envs.closed_form.placement import decode, encode, placement_of
from heterps_envs.problem import Problem
from heterps_envs.simulator.binding import bound_plan
from heterps_envs.simulator.simulate import simulated_step_time_s

SEEDS, EVALUATIONS = (0, 1), 10_000
# Changes behind it are not looked at.
MOST_SECONDS = 2.5


class Improvement(NamedTuple):
    """What a change of the cluster would bring.

    Attributes:
        change: In words.
        step_time_s: The best that was found, simulated.
        saves: Share of the step time without the change.
        usd_per_hour: What it costs more; 0 where nothing is rented for it.
    """

    change: str
    step_time_s: float
    saves: float
    usd_per_hour: float = 0.0


class Found(NamedTuple):
    """What was looked at.

    Attributes:
        improvements: The best first.
        base_step_time_s: Without a change.
        num_left: Changes that there was no time for.
    """

    improvements: tuple[Improvement, ...]
    base_step_time_s: float
    num_left: int = 0


def improvements(problem: Problem, plan: Plan) -> Found:
    """Changes one at a time, for some seconds in all."""
    started_s = time.monotonic()
    base_s = _best_s(_asked(problem, plan, problem.cluster), plan)
    found, num_left = list[Improvement](), 0
    for change, cluster in changes(problem.cluster):
        if time.monotonic() - started_s > MOST_SECONDS:
            num_left += 1
            continue
        seconds = min(_best_s(_asked(problem, plan, cluster), plan), base_s)
        more = price_usd_per_hour(cluster) - price_usd_per_hour(problem.cluster)
        found.append(Improvement(change, seconds, 1 - seconds / base_s, more))
    found.sort(key=lambda entry: -entry.saves)
    return Found(tuple(found), base_s, num_left)


def _asked(problem: Problem, plan: Plan, cluster: Cluster) -> Problem:
    """The same question on another cluster; stages may be carried out as the plan's are."""
    strategy = Strategy(
        tensor_parallel=tuple(sorted({stage.degree for stage in plan.stages})),
        recompute="auto" if any(stage.recompute_layers for stage in plan.stages) else "never",
        offload="auto" if any(stage.offloaded_layers for stage in plan.stages) else "never",
        shard_state="auto" if plan.sharded_state else "never",
    )
    return Problem(problem.profile, cluster, plan.job, problem.model_reference, strategy=strategy)


def _best_s(problem: Problem, plan: Plan) -> float:
    """Of the plan, and of what is found from it; the simulator knows all links."""
    found = [simulated_step_time_s(problem, plan)]
    # With the slowest links inside classes, and with the fastest; which ones the simulator knows.
    views = [problem] if problem.views[-1] is problem else [problem, problem.views[-1]]
    for view in views:
        placement = placement_of(view, plan)
        if placement is None:
            continue
        question = Question.of(view, Budget())
        try:
            start = encode(placement, question.options)
        except HeterpsError:  # an option that is dominated here
            continue
        if not math.isfinite(question.cost(start)):
            continue
        found += [
            _simulated_s(
                view, question, polish(start, question.kernel, EVALUATIONS, seed, question.goal)
            )
            for seed in SEEDS
        ]
    return min(found)


def _simulated_s(problem: Problem, question: Question, code: Code) -> float:
    try:
        plan = bound_plan(problem, decode(code, question.options), planner="", seed=0)
    except HeterpsError:
        return math.inf
    return simulated_step_time_s(problem, plan)
