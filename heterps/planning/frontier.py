"""Cost against throughput: every plan that is the best for somebody, `frontier(problem)`."""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from heterps.micro_batches.sizes import nearest_to_a_plan, open_sizes, with_size
from heterps.planning.problems import A_PROBLEM
from heterps_agents.exact.frontier import FrontierPoint, solve_frontier, undominated
from heterps_agents.exact.solve import MAX_SECONDS, predicted_seconds
from heterps_agents.interface.planner import A_BUDGET, Budget
from heterps_agents.interface.question import Question
from heterps_agents.plan_choices.in_flight_choice import choose_in_flight
from heterps_agents.plan_choices.reduce_choice import choose_reduce
from heterps_configs.arguments import check_type
from heterps_configs.documents.plan import Bound, Plan
from heterps_configs.errors import HeterpsError, InfeasibleError
from heterps_envs.closed_form.bounds import bound_for
from heterps_envs.closed_form.infeasible import explain_infeasible
from heterps_envs.closed_form.placement import decode
from heterps_envs.closed_form.usable import on_usable_devices
from heterps_envs.problem import Problem
from heterps_envs.simulator.binding import bind
from heterps_envs.simulator.missing_links import missing_links
from heterps_envs.simulator.simulate import is_feasible

# More than the exact solver may ask for elsewhere: most of it is never written to.
MAX_TABLE_BYTES = 2e9


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
    """The plans that no other beats in both throughput and price, the fastest first.

    By the closed form: as simulated, one of them may beat another.
    """

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

    What the strategy of the problem leaves open is chosen for each plan of it: how stages are
    carried out, and the size of micro-batches.

    Args:
        problem: Model profile, cluster, job, and what may be chosen; the job's objective does not
            matter.
        budget: Seconds that each of the three sweeps may take; a minute by default. Several sizes
            of micro-batches share them by what each is predicted to take.

    Raises:
        InfeasibleError: No plan keeps memory and the throughput floor.
        HeterpsError: The problem is too large for the exact solver.
    """
    check_type("problem", problem, Problem, A_PROBLEM)
    if budget is not None:
        check_type("budget", budget, Budget, A_BUDGET)
    start = time.perf_counter()
    if problem.strategy.is_plain:
        problem = on_usable_devices(problem)
    # A class for each node, where they are few: what is proven is then true of every link.
    problem = problem.by_node
    is_open = problem.strategy.chooses_micro_batch
    sized = [with_size(problem, s) for s in open_sizes(problem)] if is_open else [problem]
    is_limited = budget is not None and budget.has_time_limit
    seconds = budget.seconds_left if budget is not None and is_limited else MAX_SECONDS
    asked = [Question.of(each, Budget()) for each in sized]
    predicted_s = [predicted_seconds(question.kernel) for question in asked]
    if sum(predicted_s) > seconds:
        raise HeterpsError(_too_large(asked, sum(predicted_s)))
    shares = [seconds * each_s / sum(predicted_s) for each_s in predicted_s]
    found = [
        (question, point)
        for question, share_s in zip(asked, shares, strict=True)
        for point in _points(question, share_s)
    ]
    if not found:
        raise InfeasibleError(explain_infeasible(nearest_to_a_plan(sized)))
    plans = [_bound_plan(*found[index]) for index in _of_all_sizes(point for _, point in found)]
    if None in plans:
        warnings.warn(
            f"{plans.count(None)} plans are left out: no node has room for one of their groups",
            stacklevel=2,
        )
    bound = tuple(plan for plan in plans if plan is not None)
    kept = tuple(plan for plan in bound if not missing_links(problem, plan.plan))
    if len(kept) < len(bound):
        warnings.warn(
            f"{len(bound) - len(kept)} plans are left out: sums of parameters that their stages "
            "share need a link that there is none of",
            stacklevel=2,
        )
    of_size = {each.job.micro_batch_size: each for each in sized}
    fitting = tuple(p for p in kept if is_feasible(of_size[p.plan.job.micro_batch_size], p.plan))
    if len(fitting) < len(kept):
        warnings.warn(
            f"{len(kept) - len(fitting)} plans are left out: as simulated they take more memory "
            "than their devices have",
            stacklevel=2,
        )
    kept = fitting
    if not kept:
        raise InfeasibleError(f"none of the {len(plans)} plans of the frontier can be run")
    return Frontier(problem, kept, time.perf_counter() - start)


def _points(question: Question, seconds: float) -> tuple[FrontierPoint, ...]:
    """The frontier with one size of micro-batches; empty where nothing fits."""
    result = solve_frontier(question.kernel, question.goal.floor_s, seconds, MAX_TABLE_BYTES)
    if result.status == "over budget":
        raise HeterpsError(_too_large([question], predicted_seconds(question.kernel)))
    return result.points


def _of_all_sizes(points: Iterable[FrontierPoint]) -> list[int]:
    """Indices of those that no point of another size beats, the fastest first."""
    pairs = np.array([(point.step_time_s, point.price_usd_per_hour) for point in points])
    return undominated(*pairs.T)


def _too_large(asked: Sequence[Question], predicted_s: float) -> str:
    kernel = asked[0].kernel
    ways = f" in {kernel.num_options} ways" if kernel.num_options > kernel.num_classes else ""
    pins = (
        "leave less open with --tensor-parallel 1, --recompute never, --shard-state never and "
        "--micro-batch 1, or "
    )
    return (
        f"the frontier needs the exact solver, and {kernel.num_layers} layers on "
        f"{kernel.num_classes} device classes{ways} take it about {predicted_s:.3g} s or more a "
        f"sweep: too long, or longer than predicted; {pins if ways or len(asked) > 1 else ''}"
        "place single plans with --objective price and several --min-throughput instead"
    )


def _bound_plan(question: Question, point: FrontierPoint) -> FrontierPlan | None:
    """None where no node has room for one of its groups."""
    problem = question.problem
    assert problem is not None, "questions are made of problems"
    placement = decode(point.code, question.options)
    plan = bind(problem, placement, planner="exact", seed=0)
    plan = choose_in_flight(problem, choose_reduce(problem, plan), Budget())
    # What is proven is that no plan is both faster and cheaper, which no bound of a plan says.
    plan = plan.changed(bound=bound_for(problem, plan) if problem.strategy.is_plain else Bound())
    used = Counter({entry.type.name: 0 for entry in problem.classes})
    for stage in placement:
        used[problem.classes[stage.device_class].type.name] += stage.replicas * stage.degree
    samples = problem.job.global_batch_size
    usd = point.price_usd_per_hour / 3600 * point.step_time_s
    return FrontierPlan(
        plan=plan,
        devices={name: count for name, count in used.items() if count},
        step_time_s=point.step_time_s,
        throughput_samples_per_s=samples / point.step_time_s,
        price_usd_per_million_samples=usd / samples * 1e6,
    )
