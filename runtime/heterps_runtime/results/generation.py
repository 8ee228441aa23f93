"""A plan of a run beside what the simulator said of it before it ran."""

from __future__ import annotations

from dataclasses import dataclass

from heterps_configs.documents.estimate import Estimate
from heterps_configs.documents.plan import Plan
from heterps_envs.problem import Problem
from heterps_envs.schedule.actions import Schedule
from heterps_envs.simulator.action_times import action_times
from heterps_envs.simulator.memory_curves import memory_curves
from heterps_envs.simulator.memory_timeline import memory_timeline
from heterps_envs.simulator.prepared import PreparedPlan
from heterps_envs.simulator.simulate import simulate
from heterps_runtime.results.link_times import predicted_seconds, routes_of
from heterps_runtime.results.step_figures import StepFigures, step_figures, timeline_rows
from heterps_runtime.specification.groups import actions_of_members


@dataclass(frozen=True)
class Generation:
    """A plan of the run, and what was predicted of it.

    Attributes:
        problem: Which the prediction rests on.
        schedule: The plan's action lists.
        estimate: With its timeline.
        figures: Of a step, as predicted.
    """

    problem: Problem
    plan: Plan
    schedule: Schedule
    estimate: Estimate
    figures: StepFigures

    @classmethod
    def of(cls, problem: Problem, plan: Plan, schedule: Schedule) -> Generation:
        """Predicts a plan."""
        estimate = simulate(problem, plan, schedule)
        figures = step_figures(
            plan,
            estimate.step_time_s,
            timeline_rows(plan, estimate.timeline),
            estimate.memory_bytes,
            predicted_seconds(
                problem, plan, routes_of(plan, actions_of_members(plan, schedule.actions))
            ),
        )
        return cls(problem, plan, schedule, estimate, figures)

    def estimate_with_memory(self) -> Estimate:
        """With the memory curve of every device."""
        prepared = PreparedPlan(self.problem, self.plan, self.schedule)
        curves = memory_curves(memory_timeline(prepared), action_times(prepared))
        return self.estimate.changed(memory_curves=curves)
