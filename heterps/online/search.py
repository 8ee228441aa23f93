"""Plans for a problem that drifted: the work that a run's controller leaves to another process.

First, recalibrate and resolve: the running plan, the exact optimum where that is affordable, the
learned search, and in a run with tensor-parallel groups other groups, as Malleus forms them. Then
the policy is fine-tuned by PPO in the corrected simulator, and searches again. Every plan is
simulated in the most likely problem, and in problems drawn from the belief: these say how sure it
is that one plan is faster than another.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from heterps.planning.place import place
from heterps_agents.interface.planner import Budget, Planner
from heterps_agents.interface.registry import planner_named
from heterps_agents.learned.planner import PolicyPlanner
from heterps_agents.learned.policy import Policy
from heterps_agents.systems.malleus.system import Malleus
from heterps_configs.documents.job import Strategy
from heterps_configs.documents.plan import Plan
from heterps_configs.documents.run_settings import OnlineSettings
from heterps_configs.errors import HeterpsError
from heterps_envs.online.correction import ProblemBelief
from heterps_envs.problem import PLAIN, Problem
from heterps_envs.simulator.simulate import estimate

# The names of candidates: of the running plan, and of planners. Of equally fast ones the first here
# is taken.
STALE, TUNED, LEARNED, EXACT, REGROUPED = "stale", "tuned-ppo", "ppo", "exact", "malleus"
PREFERENCE = (STALE, REGROUPED, TUNED, LEARNED, EXACT)
# Processor seconds for simulations in drawn problems.
DRAWS_S = 4.0
NUM_DRAWS, LEAST_DRAWS = 16, 4


@dataclass(frozen=True)
class SearchTask:
    """What is asked for.

    Attributes:
        belief: What the measurements say.
        problem: The belief's most likely problem.
        plan: What runs.
        policy: Stays as it is.
        settings: What the search may take.
        seed: Of planners, fine-tuning and draws.
        strategy: Ways to carry out stages that plans may have.
    """

    belief: ProblemBelief
    problem: Problem
    plan: Plan
    policy: Policy
    settings: OnlineSettings
    seed: int
    strategy: Strategy = PLAIN


@dataclass(frozen=True)
class Candidate:
    """A plan, and what it is predicted to take.

    Attributes:
        step_time_s: In the most likely problem.
        drawn_s: In problems drawn from the belief, the same ones for all candidates of a task.
    """

    plan: Plan
    step_time_s: float
    drawn_s: tuple[float, ...]

    def gain_spread_s(self, other: Candidate) -> float:
        """Standard deviation of how much longer the other's step takes; 0 for the same plan."""
        gains = [theirs - own for theirs, own in zip(other.drawn_s, self.drawn_s, strict=True)]
        return statistics.pstdev(gains) if gains else 0.0


@dataclass(frozen=True)
class Answer:
    """Candidates by name.

    Attributes:
        remarks: Why there is none of some name.
        policy: The fine-tuned one, in the answer after fine-tuning.
        fine_tune_s: Seconds that it took.
    """

    candidates: Mapping[str, Candidate]
    remarks: tuple[str, ...] = ()
    policy: Policy | None = None
    fine_tune_s: float = 0.0


@dataclass
class _Judge:
    """Simulates plans in the most likely problem and in drawn ones."""

    task: SearchTask
    draws: list[Problem] = field(default_factory=list)

    def candidate(self, plan: Plan) -> Candidate:
        """A plan with its step times; the first plan decides how many draws are affordable."""
        step_time_s = estimate(self.task.problem, plan).step_time_s
        if self.draws:
            drawn_s = [estimate(problem, plan).step_time_s for problem in self.draws]
            return Candidate(plan, step_time_s, tuple(drawn_s))
        drawn_s, started_s = [], time.process_time()
        for problem in self.task.belief.draws(NUM_DRAWS, self.task.seed, self.task.problem):
            self.draws.append(problem)
            drawn_s.append(estimate(problem, plan).step_time_s)
            is_late = time.process_time() - started_s > DRAWS_S
            if is_late and len(drawn_s) >= LEAST_DRAWS:
                break
        return Candidate(plan, step_time_s, tuple(drawn_s))


def answers(task: SearchTask) -> Iterator[Answer]:
    """One answer soon; another one after fine-tuning, where that is asked for."""
    judge, settings, seed = _Judge(task), task.settings, task.seed
    problem = replace(task.problem, strategy=task.strategy)
    found = {STALE: judge.candidate(task.plan)}
    remarks: list[str] = []

    def add(name: str, planner: Planner, budget: Budget) -> None:
        try:
            found[name] = judge.candidate(place(problem, planner, budget=budget).plan)
        except HeterpsError as error:
            remarks.append(f"{name}: {error}")

    if task.strategy != PLAIN or task.plan.planner == Malleus.name:
        add(REGROUPED, Malleus(seed, running=task.plan), Budget(cpu_seconds=settings.exact_cpu_s))
    add(EXACT, planner_named("exact", seed=seed), Budget(cpu_seconds=settings.exact_cpu_s))
    add(LEARNED, PolicyPlanner(seed=seed, policy=task.policy, effort=settings.effort), Budget())
    yield Answer(dict(found), tuple(remarks))
    if settings.fine_tune_s <= 0:
        return
    # SB3 and torch are loaded only for this.
    from heterps_agents.training.fine_tune import fine_tune

    started_s, first = time.perf_counter(), len(remarks)
    try:
        policy = fine_tune(
            task.policy, [task.problem.tables], seconds=settings.fine_tune_s, seed=seed
        )
    except HeterpsError as error:
        yield Answer(found, (f"fine-tuning: {error}",))
        return
    spent_s = time.perf_counter() - started_s
    add(TUNED, PolicyPlanner(seed=seed, policy=policy, effort=settings.effort), Budget())
    yield Answer(found, tuple(remarks[first:]), policy, spent_s)
