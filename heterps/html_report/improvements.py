"""What would help most: faster links, more memory, another node; each is planned anew.

Of each change the plan itself is simulated, and what short searches from it find: the step time is
one that was found, so the change may bring more. The others are compared with what the searches
find without any change.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from heterps.html_report.changes import changes, price_usd_per_hour
from heterps_agents.finishing.near_plan import best_near
from heterps_agents.interface.planner import Budget
from heterps_configs.documents.cluster import Cluster
from heterps_configs.documents.plan import Plan
from heterps_envs.problem import Problem

# Changes behind it are not looked at.
MOST_SECONDS = 2.0
# Of larger clusters each change gets one search.
MANY_DEVICES = 64


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
    base_s = _best_s(problem, plan, problem.cluster)
    found, num_left = list[Improvement](), 0
    for change, cluster in changes(problem.cluster):
        if time.monotonic() - started_s > MOST_SECONDS:
            num_left += 1
            continue
        seconds = min(_best_s(problem, plan, cluster), base_s)
        more = price_usd_per_hour(cluster) - price_usd_per_hour(problem.cluster)
        found.append(Improvement(change, seconds, 1 - seconds / base_s, more))
    found.sort(key=lambda entry: -entry.saves)
    return Found(tuple(found), base_s, num_left)


def _best_s(problem: Problem, plan: Plan, cluster: Cluster) -> float:
    """On another cluster: of the plan, and of what is found from it."""
    asked = Problem(problem.profile, cluster, plan.job, problem.model_reference)
    is_quick = len(cluster.devices) > MANY_DEVICES
    return best_near(asked, plan, Budget(), is_quick=is_quick)[1]
