"""The front door of planning: `place(problem) -> PlaceResult`."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from heterps_agents.finishing.interleaving import interleave
from heterps_agents.finishing.reduce_choice import choose_reduce
from heterps_agents.interface.planner import Budget, Planner
from heterps_agents.interface.registry import planner_named
from heterps_agents.interface.system import OwnCost, System
from heterps_agents.learned.efforts import with_effort
from heterps_configs.documents.estimate import Estimate
from heterps_configs.documents.job import Schedule
from heterps_configs.documents.plan import Bound, Plan
from heterps_configs.errors import InfeasibleError
from heterps_envs.closed_form.bounds import bound_for
from heterps_envs.closed_form.usable import on_usable_devices
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import estimate


class TriedSize(NamedTuple):
    """A size of micro-batches that a plan could have had; costs are in what the job minimises.

    Attributes:
        size: Samples.
        bound: No plan costs less; 0 where none is known.
        promised: Of simple placements, by the closed form; inf where none fits.
        found: Of the plan that was found, simulated; None without one.
        why: Why nothing was found, or sought.
    """

    size: int
    bound: float
    promised: float
    found: float | None = None
    why: str = ""


@dataclass(frozen=True)
class PlaceResult:
    """A plan, what the simulator says of it, and how good it can still become.

    Attributes:
        requested_planner: The planner that was asked; `plan.planner` is the one that made the plan.
        evaluations: Placements whose cost was computed.
        planning_s: Wall-clock seconds of planning alone.
        planning_cpu_s: The same in processor seconds of this process.
        own_cost: What a paper's method itself predicts; None for all other planners.
        tried_sizes: Of micro-batches, where several were looked at; the smallest first.
    """

    problem: Problem
    requested_planner: str
    plan: Plan
    estimate: Estimate
    bound: Bound
    evaluations: int
    planning_s: float
    planning_cpu_s: float = 0.0
    own_cost: OwnCost | None = None
    tried_sizes: tuple[TriedSize, ...] = ()

    def __repr__(self) -> str:
        """One line: the plan itself has hundreds."""
        return f"PlaceResult({self.plan.model} on {self.plan.cluster}; {self.summary()})"

    def to_mapping(self) -> dict[str, Any]:
        """The JSON contract of `heterps place --json`."""
        shown = self.estimate
        return {
            "planner": self.plan.planner,
            "requested_planner": self.requested_planner,
            "plan": self.plan.model_dump(mode="json"),
            "estimate": {
                "step_time_s": shown.step_time_s,
                "step_time_low_s": shown.step_time_low_s,
                "step_time_high_s": shown.step_time_high_s,
                "closed_form_step_time_s": shown.closed_form_step_time_s,
                "throughput_samples_per_s": shown.throughput_samples_per_s,
                "price_usd_per_million_samples": shown.price_usd_per_million_samples,
                "memory_bytes": dict(shown.memory_bytes),
                "feasible": shown.feasible,
                "layer_times": shown.layer_times,
            },
            "bound": {
                "step_time_s": self.bound.step_time_s,
                "gap": self.bound.gap,
                "status": self.bound.status,
            },
            "planning_s": self.planning_s,
            "own_cost": self.own_cost and self.own_cost._asdict(),
        }

    def optimality(self, seconds_text: Callable[[float], str] = "{:.4g} s".format) -> str:
        """How far the plan can be from the best, in words, and the numbers that this is about.

        Args:
            seconds_text: How a number of seconds is written.
        """
        times = {
            "closed form": self.estimate.closed_form_step_time_s,
            "bound": self.bound.step_time_s,
            "simulated": self.estimate.step_time_s,
        }
        known = [f"{name} {seconds_text(s)}" for name, s in times.items() if s is not None]
        return f"{describe_bound(self.bound, self.plan.job.schedule)}: {', '.join(known)}"

    def summary(self) -> str:
        """One paragraph in words."""
        shown = self.estimate
        return (
            f"{self.plan.planner}: {len(self.plan.stages)} stages "
            f"on {len(self.plan.devices)} devices, "
            f"{shown.throughput_samples_per_s:.4g} samples/s ({shown.step_time_s:.4g} s a step), "
            f"{shown.price_usd_per_million_samples:.4g} USD per million samples; "
            f"{self.optimality()}; "
            f"layer times: {shown.layer_times}"
        )


def place(
    problem: Problem,
    planner: str | Planner = "auto",
    *,
    budget: Budget | None = None,
    seed: int = 0,
    effort: str | None = None,
) -> PlaceResult:
    """Finds a plan and says how good it is.

    Args:
        problem: Model profile, cluster and job.
        planner: A registered name, or a planner of your own.
        budget: Evaluations and seconds that the planner may spend; unlimited by default.
        seed: Of planners that draw random numbers.
        effort: `fast`, `normal` or `high`, for planners that can try harder (`ppo`, `auto`); a
            warning where the planner knows no efforts.

    Raises:
        UnknownNameError: No planner or effort has that name.
        InfeasibleError: No plan keeps memory and the throughput floor.
    """
    chosen = planner_named(planner, seed=seed) if isinstance(planner, str) else planner
    if effort is not None:
        chosen = with_effort(chosen, effort)
    spent = budget or Budget()
    if not problem.strategy.is_plain and not chooses_options(chosen):
        warnings.warn(
            f"the planner {chosen.name} {_own_way(chosen)}: tensor parallel, recompute, offload "
            "and sharded state are ignored",
            stacklevel=2,
        )
        problem = problem.plain
    if problem.strategy.is_plain:
        problem = on_usable_devices(problem)
    if isinstance(chosen, System):
        plan, own_cost = chosen.answer(problem, spent)
    else:
        plan, own_cost = chosen.plan(problem, spent), None
    plan = interleave(problem, plan, spent)
    plan = choose_reduce(problem, plan)
    planning_s, planning_cpu_s = spent.seconds_used, spent.cpu_seconds_used
    shown = estimate(problem, plan, with_interval=True)
    if not shown.feasible:
        raise InfeasibleError(f"planner {chosen.name}: " + "; ".join(shown.reasons))
    if own_cost is not None and own_cost.note:
        shown = shown.changed(notes=(own_cost.note, *shown.notes))
    bound = plan.bound
    # A bound of plans without options is none of those with them.
    if bound.status == "unknown" and problem.strategy.is_plain:
        bound = bound_for(problem, plan)
    plan = plan.changed(predicted_step_time_s=shown.step_time_s, bound=bound)
    return PlaceResult(
        problem, chosen.name, plan, shown, bound,
        spent.evaluations_used, planning_s, planning_cpu_s, own_cost,
    )  # fmt: skip


def _own_way(planner: Planner | System) -> str:
    """What a planner does that chooses no options."""
    if isinstance(planner, System) and planner.makes_groups:
        return "makes groups by its own cost"
    return "places each stage on one device that keeps all"


def chooses_options(planner: Planner | System) -> bool:
    """Whether a planner chooses how stages are carried out, where a strategy lets it."""
    return bool(getattr(planner, "chooses_options", False))


def describe_bound(bound: Bound, schedule: Schedule = "1f1b") -> str:
    """The optimality of a plan in words: proven, within x %, or unknown.

    Planners have no closed form of their own for `interleaved` and `zero-bubble`: they use that of
    1F1B, and the words say so.
    """
    form = "" if schedule in ("1f1b", "gpipe") else " of 1F1B"
    if bound.status == "proven":
        return f"proven optimal for the closed form{form}"
    if bound.status == "bounded" and bound.gap is not None:
        return f"within {100 * bound.gap:.1f} % of the bound{form}"
    return "distance to the optimum unknown"
