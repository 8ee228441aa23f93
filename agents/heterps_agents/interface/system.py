"""What a system is: a paper's own planner, which says what it can answer and what it predicts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

from heterps_agents.interface.papers import EVIDENCE, Evidence
from heterps_agents.interface.planner import Budget
from heterps_configs.documents.plan import Plan
from heterps_configs.errors import HeterpsError, InfeasibleError
from heterps_envs.closed_form.bounds import bound_for
from heterps_envs.closed_form.usable import where_layers_fit
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import estimate


class OwnCost(NamedTuple):
    """What a method itself predicts of its plan, by its own cost model and our profile's times.

    Attributes:
        seconds: The prediction.
        of: What takes so long: `STEP`, or `PERIOD`.
        note: What of the method's own answer no plan of ours says, in a line; empty: nothing.
    """

    seconds: float
    of: str
    note: str = ""


# A whole step; or the time from one micro-batch to the next, which the slowest stage sets.
STEP, PERIOD = "step", "micro-batch"


class SystemAnswer(NamedTuple):
    """A plan of ours, and what the method says of it; None where it has no cost of its own."""

    plan: Plan
    own_cost: OwnCost | None


class System(ABC):
    """A planner with a paper. `registry` knows the implementations, `papers` their sources.

    Args:
        seed: Written into plans; of the methods that draw random numbers.
    """

    name: str
    # How it carries out stages of its own accord, whatever a strategy allows, as the end of a
    # sentence; empty: each is one device that keeps all.
    own_way = ""
    # Degrees of groups, as a strategy allows.
    chooses_options = False
    # Whether its plans fit, the simulator says, and not the rule of planners.
    asks_simulator = True

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """Published numbers that are reproduced here; empty where there are none."""
        return EVIDENCE.get(self.name, ())

    def why_not(self, problem: Problem) -> str | None:
        """Why the method cannot express a problem, in one line; None: it can."""
        del problem
        return None

    @abstractmethod
    def solve(self, problem: Problem, budget: Budget) -> SystemAnswer:
        """The method's answer to a problem that it can express, whether it fits or not.

        Raises:
            InfeasibleError: The method finds no plan.
            HeterpsError: The problem is too large for it.
        """

    def answer(self, problem: Problem, budget: Budget) -> SystemAnswer:
        """The method's answer, with the step time that our simulator predicts.

        Raises:
            InfeasibleError: The method finds no plan, or one that does not fit by our memory rule
                or misses the throughput floor.
            HeterpsError: It cannot express the problem, or that is too large for it.
        """
        asked = problem if self.chooses_options else problem.plain
        asked = where_layers_fit(asked) if asked.strategy.is_plain else asked
        # The methods have one link for the devices of a class.
        problem = asked.by_node
        reason = self.why_not(problem)
        if reason is not None:
            raise HeterpsError(f"{self.name}: {reason}")
        try:
            found = self.solve(problem, budget)
        except HeterpsError as error:
            kind = InfeasibleError if isinstance(error, InfeasibleError) else HeterpsError
            raise kind(f"{self.name}: {str(error).removeprefix(f'{self.name}: ')}") from error
        plan = found.plan
        if problem is not asked:
            plan = plan.changed(bound=bound_for(asked, plan))
        shown = estimate(problem, plan)
        if not shown.feasible:
            first, *others = shown.reasons
            more = f"; and {len(others)} more such" if others else ""
            raise InfeasibleError(f"{self.name}: its plan does not fit here: {first}{more}")
        return found._replace(plan=plan.changed(predicted_step_time_s=shown.step_time_s))

    def plan(self, problem: Problem, budget: Budget) -> Plan:
        """The plan of `answer`."""
        return self.answer(problem, budget).plan
