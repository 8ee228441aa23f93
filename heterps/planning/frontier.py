"""Cost against throughput: every plan that is the best for somebody, `frontier(problem)`."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

from heterps_agents.exact.frontier import FrontierPoint, solve_frontier
from heterps_agents.exact.solve import predicted_seconds
from heterps_agents.interface.planner import Budget
from heterps_configs.documents.plan import Bound, Plan
from heterps_configs.errors import HeterpsError, InfeasibleError
from heterps_envs.closed_form.infeasible import explain_infeasible
from heterps_envs.closed_form.kernel_tables import kernel_tables
from heterps_envs.closed_form.objective import Goal
from heterps_envs.closed_form.placement import decode
from heterps_envs.closed_form.usable import on_usable_devices
from heterps_envs.problem import Problem
from heterps_envs.simulator.binding import bind


@dataclass(frozen=True)
class FrontierPlan:
    """One plan of the frontier; its step time is the closed form's.

    Attributes:
        devices: How many of each device type it uses, in the order of the cluster's file.
    """

    plan: Plan
    devices: dict[str, int]
    step_time_s: float
    throughput_samples_per_s: float
    price_usd_per_million_samples: float

    def to_mapping(self) -> dict[str, Any]:
        """What `heterps place --frontier --json` shows of it."""
        return {
            "devices": self.devices,
            "step_time_s": self.step_time_s,
            "throughput_samples_per_s": self.throughput_samples_per_s,
            "price_usd_per_million_samples": self.price_usd_per_million_samples,
            "simulated_step_time_s": self.plan.predicted_step_time_s,
            "plan": self.plan.model_dump(mode="json"),
        }


@dataclass(frozen=True)
class Frontier:
    """The plans that no other plan beats in both throughput and price, the fastest first."""

    problem: Problem
    plans: tuple[FrontierPlan, ...]
    planning_s: float

    def __repr__(self) -> str:
        """One line."""
        names = f"{self.problem.profile.name} on {self.problem.cluster.name}"
        rates = [f"{entry.throughput_samples_per_s:.4g}" for entry in self.plans]
        return f"Frontier({names}: {len(rates)} plans of {rates[0]} to {rates[-1]} samples/s)"

    def to_mapping(self) -> dict[str, Any]:
        """The JSON contract of `heterps place --frontier --json`."""
        return {
            "status": "proven",
            "layer_times": self.problem.layer_times.sources,
            "frontier": [entry.to_mapping() for entry in self.plans],
            "planning_s": self.planning_s,
        }


def frontier(problem: Problem, *, budget: Budget | None = None) -> Frontier:
    """The exact frontier by the closed form, under the job's throughput floor if it has one.

    Args:
        problem: Model profile, cluster and job; the job's objective does not matter.
        budget: Seconds that each of the three sweeps may take; a minute by default.

    Raises:
        InfeasibleError: No plan keeps memory and the throughput floor.
        HeterpsError: The problem is too large for the exact solver.
    """
    start = time.perf_counter()
    # A class for each node, where they are few: what is proven is then true of every link.
    problem = on_usable_devices(problem).by_node
    kernel, goal = kernel_tables(problem.tables), Goal.of(problem.job)
    limited = budget is not None and budget.has_time_limit
    seconds = {"max_seconds": budget.seconds_left} if budget is not None and limited else {}
    result = solve_frontier(kernel, goal.floor_s, **seconds)
    if result.status == "infeasible":
        raise InfeasibleError(explain_infeasible(problem))
    if result.status == "over budget":
        raise HeterpsError(
            f"the frontier needs the exact solver, and {kernel.num_layers} layers on "
            f"{kernel.num_classes} device classes take it about {predicted_seconds(kernel):.3g} s "
            "or more a sweep: too long, or longer than predicted; place single plans with "
            "--objective price and several --min-throughput instead"
        )
    plans = tuple(_bound_plan(problem, point) for point in result.points)
    return Frontier(problem, plans, time.perf_counter() - start)


def _bound_plan(problem: Problem, point: FrontierPoint) -> FrontierPlan:
    placement = decode(point.code)
    bound = Bound(step_time_s=point.step_time_s, gap=0.0, status="proven")
    plan = bind(problem, placement, planner="exact", seed=0, bound=bound)
    used = Counter({entry.type.name: 0 for entry in problem.classes})
    for stage in placement:
        used[problem.classes[stage.device_class].type.name] += stage.replicas
    samples = problem.job.global_batch_size
    usd = point.price_usd_per_hour / 3600 * point.step_time_s
    return FrontierPlan(
        plan=plan,
        devices={name: count for name, count in used.items() if count},
        step_time_s=point.step_time_s,
        throughput_samples_per_s=samples / point.step_time_s,
        price_usd_per_million_samples=usd / samples * 1e6,
    )
