"""The planner `exact`: the optimum by the closed form, with its proof, where that is affordable."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from heterps_agents.exact.solve import (
    MAX_SECONDS,
    ExactResult,
    predicted_seconds,
    solve,
    table_bytes,
)
from heterps_agents.interface.answer import answer
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.registry import register
from heterps_agents.interface.views import fastest
from heterps_configs.documents.plan import Bound, Plan
from heterps_configs.errors import HeterpsError, InfeasibleError
from heterps_envs.closed_form.bounds import bound_by_optimum, lower_bound
from heterps_envs.closed_form.formula import KernelTables, kernel_tables
from heterps_envs.closed_form.infeasible import explain_infeasible
from heterps_envs.closed_form.objective import Goal
from heterps_envs.closed_form.usable import on_usable_devices
from heterps_envs.cost_tables import CostTables
from heterps_envs.problem import Problem


@register("exact")
class ExactPlanner:
    """Dynamic programme over layers, device classes and devices used (`exact.solve`).

    It is optimal by the closed form; the simulator may prefer another plan (see `shortlist`).

    A budget in seconds that the predicted time exceeds is refused before the work; one that the
    work exceeds, by far more transitions than predicted, is given up. A budget in evaluations does
    not bind it. Evaluations are counted as transitions: one stage put before one label.

    Where equal nodes share device classes, the bound is the optimum with the fastest link between
    any two devices of the classes; of the optima of all views of the problem the plan is the one
    that the simulator likes best, and proven only where its own links let it reach that bound.

    Elsewhere the bound of its plans is their own step time, proven. For the objective price that is
    the step time of the cheapest plan: a faster one may exist, a cheaper one that keeps the floor
    does not.
    """

    name = "exact"

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def plan(self, problem: Problem, budget: Budget) -> Plan:
        """The optimal plan.

        Raises:
            InfeasibleError: No plan exists.
            HeterpsError: The problem is too large for a proof.
        """
        problem = on_usable_devices(problem)
        result = self._solved(problem, problem.bounding_tables, budget)
        if not problem.merges_nodes:
            code = proven_code(problem, result)
            bound = Bound(step_time_s=result.step_time_s, gap=0.0, status="proven")
            kernel = kernel_tables(problem.tables)
            return answer(problem, kernel, code, planner=self.name, seed=self.seed, bound=bound)
        if result.code is None:
            raise InfeasibleError(explain_infeasible(problem))
        plan = fastest(problem, self._plans(problem, budget))
        bound = bound_by_optimum(problem, plan, result.step_time_s, result.price_usd_per_hour)
        return plan.changed(bound=bound)

    def _solved(self, problem: Problem, tables: CostTables, budget: Budget) -> ExactResult:
        """The optimum of some tables of a problem, or the proof that there is none."""
        seconds, kernel = min(MAX_SECONDS, budget.seconds_left), kernel_tables(tables)
        result = solve(kernel, Goal.of(problem.job), max_seconds=seconds)
        if result.status == "over budget":
            raise HeterpsError(_too_large(problem, kernel, seconds))
        budget.spend(result.transitions)
        return result

    def _plans(self, problem: Problem, budget: Budget) -> list[Plan]:
        """The optima of each view, as far as each is quick enough.

        The second one of a view is that with equal links for few and many replicas: binding may
        find no node for as many as a node has devices.

        Raises:
            InfeasibleError: No view has one.
            HeterpsError: None could be solved.
        """
        plans, reasons = list[Plan](), list[HeterpsError]()
        alike = [(view, replace(view.tables, rings=None)) for view in problem.views]
        for view, tables in [*((view, view.tables) for view in problem.views), *alike]:
            try:
                code = proven_code(view, self._solved(view, tables, budget))
            except HeterpsError as error:
                reasons.append(error)
                continue
            kernel = kernel_tables(view.tables)
            plans.append(answer(view, kernel, code, planner=self.name, seed=self.seed))
        if not plans:
            raise reasons[0]
        return plans


def proven_code(problem: Problem, result: ExactResult) -> NDArray[np.int16]:
    """The code of a finished proof.

    Raises:
        InfeasibleError: The proof is that there is none.
    """
    if result.code is None:
        raise InfeasibleError(explain_infeasible(problem))
    return result.code


def _too_large(problem: Problem, kernel: KernelTables, seconds: float) -> str:
    return (
        f"exact: {kernel.num_layers} layers on {kernel.num_classes} device classes take about "
        f"{predicted_seconds(kernel):.3g} s or more and {table_bytes(kernel) / 1e6:.3g} MB "
        f"(it may take {seconds:.3g} s); all that is known of the optimum is that no step is below "
        f"{lower_bound(problem.bounding_tables):.4g} s; choose another planner, such as auto"
    )
