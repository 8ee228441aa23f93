"""What planning answers: a plan, what the simulator says of it, and how good it can become."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from heterps_agents.interface.system import PERIOD, OwnCost
from heterps_configs.documents.estimate import Estimate
from heterps_configs.documents.job import Schedule
from heterps_configs.documents.plan import Bound, Plan
from heterps_envs.options import allows_unlike_groups
from heterps_envs.problem import Problem

# Step times are sums with rounding errors.
ROUNDING = 1e-6


class TriedSize(NamedTuple):
    """A size of micro-batches that a plan could have had; costs are in what the job minimises.

    Attributes:
        size: Samples.
        bound: No placement that fits by the planners' rule costs less; 0 where none is known.
        promised: Of simple placements, by the closed form; inf where none fits.
        found: Of the plan that was found, simulated; None without one.
        why: Why nothing was found, or sought.
    """

    size: int
    bound: float
    promised: float
    found: float | None = None
    why: str = ""


class SearchedBeside(NamedTuple):
    """What one of several searches found, each in a process of its own.

    Attributes:
        planner: Its name.
        seed: Of its random numbers.
        step_time_s: Of its plan, simulated; None without one.
        cpu_s: Processor seconds of the process.
        why: Why there is no plan.
    """

    planner: str
    seed: int
    step_time_s: float | None
    cpu_s: float
    why: str = ""


@dataclass(frozen=True)
class PlaceResult:
    """A plan, what the simulator says of it, and how good it can still become.

    Attributes:
        requested_planner: The planner that was asked; `plan.planner` is the one that made the plan.
        evaluations: Placements whose cost was computed.
        planning_s: Wall-clock seconds of planning alone.
        planning_cpu_s: The same in processor seconds, of all processes that searched.
        own_cost: What a paper's method itself predicts; None for all other planners.
        bound: About step times by the closed form.
        tried_sizes: Of micro-batches, where several were looked at; the smallest first.
        executable: About simulated step times, of all plans that can be run.
        searches: Of all processes, where there were several; the first is this one.
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
    executable: Bound = field(default_factory=Bound)
    searches: tuple[SearchedBeside, ...] = ()

    def __post_init__(self) -> None:
        """No bound is above what the plan itself takes: that one would be no bound."""
        shown = self.estimate
        assert _is_below(self.executable, shown.step_time_s), (self.executable, shown.step_time_s)
        closed_s = shown.closed_form_step_time_s
        assert closed_s is None or _is_below(self.bound, closed_s), (self.bound, closed_s)

    def __repr__(self) -> str:
        """One line: the plan itself has hundreds."""
        return f"PlaceResult({self.plan.model} on {self.plan.cluster}; {self.summary()})"

    @property
    def own_prediction_s(self) -> float | None:
        """What the planner itself expects of a step.

        Of a paper's method by its own cost, of all others by the closed form; None without one.
        """
        if self.own_cost is None:
            return self.estimate.closed_form_step_time_s
        rounds = self.plan.job.num_micro_batches if self.own_cost.of == PERIOD else 1
        return self.own_cost.seconds * rounds

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
                "step_time_s": self.executable.step_time_s,
                "gap": self.executable.gap,
                "status": self.executable.status,
                "closed_form_step_time_s": self.bound.step_time_s,
                "closed_form_gap": self.bound.gap,
                "closed_form_status": self.bound.status,
            },
            "planning_s": self.planning_s,
            "own_cost": self.own_cost and self.own_cost._asdict(),
            "searches": [search._asdict() for search in self.searches],
        }

    def optimality(self, seconds_text: Callable[[float], str] = "{:.4g} s".format) -> str:
        """How far the plan can be from the best, in words, and the numbers that this is about.

        Args:
            seconds_text: How a number of seconds is written.
        """
        simulated = {
            "simulated": self.estimate.step_time_s,
            "bound": self.executable.step_time_s,
        }
        formed = {
            "closed form": self.estimate.closed_form_step_time_s,
            "bound": self.bound.step_time_s,
        }
        known = describe_executable(self.executable)
        if known and allows_unlike_groups(self.problem):
            known = f"{known}, among groups of equal devices"
        # The closed form adds nothing where it has no gap and the simulator has.
        closed = describe_bound(self.bound, self.plan.job.schedule)
        usd = self.estimate.price_usd_per_million_samples
        is_free = self.plan.job.objective == "price" and usd == 0
        texts = ["no plan costs less than nothing"] if is_free else []
        texts += [
            _with_numbers(words, times, seconds_text)
            for words, times in ((known, simulated), (closed, formed))
            if words
            and not ((known or is_free) and times is formed and self.bound.status == "unknown")
        ]
        return "; ".join(texts)

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


def _is_below(bound: Bound, step_time_s: float) -> bool:
    return bound.step_time_s is None or bound.step_time_s <= step_time_s * (1 + ROUNDING)


def _with_numbers(
    words: str, times_s: Mapping[str, float | None], seconds_text: Callable[[float], str]
) -> str:
    """Words, and the seconds that they are about, as far as these are known."""
    told = ", ".join(f"{name} {seconds_text(s)}" for name, s in times_s.items() if s is not None)
    return f"{words}: {told}" if told else words


def describe_executable(bound: Bound) -> str:
    """How far a plan is from the best that can be run; nothing where no bound is known."""
    if bound.status == "proven":
        return "proven optimal as simulated"
    if bound.status == "bounded" and bound.gap is not None:
        return f"within {100 * bound.gap:.1f} % of a bound of all plans"
    return ""


def describe_bound(bound: Bound, schedule: Schedule = "1f1b") -> str:
    """The optimality of a plan in words: proven, within x %, or unknown.

    Planners have no closed form of their own for `interleaved` and `zero-bubble`: they use that of
    1F1B, and the words say so.
    """
    form = "" if schedule in ("1f1b", "gpipe") else " of 1F1B"
    if bound.status == "proven":
        return f"proven optimal for the closed form{form}"
    if bound.status == "bounded" and bound.gap is not None:
        return f"within {100 * bound.gap:.1f} % of the closed form's bound{form}"
    return "distance to the optimum unknown"
