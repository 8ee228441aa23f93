"""The planner `exact`: the optimum by the closed form, with its proof, where that is affordable."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from heterps_agents.exact.all_plans import bound_of_all
from heterps_agents.exact.runnable import Limits, best_runnable
from heterps_agents.exact.solve import (
    MAX_SECONDS,
    ExactResult,
    WorkLimits,
    predicted_seconds,
    solve,
    table_bytes,
)
from heterps_agents.interface.answer import answer
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.question import Question
from heterps_agents.interface.registry import register
from heterps_agents.interface.views import fastest
from heterps_configs.documents.plan import Plan
from heterps_configs.errors import HeterpsError, InfeasibleError, TooDearError
from heterps_envs.arrays import Code
from heterps_envs.closed_form.bounds import lower_bound
from heterps_envs.closed_form.infeasible import explain_infeasible
from heterps_envs.closed_form.kernel_tables import KernelTables, kernel_tables
from heterps_envs.closed_form.objective import Goal
from heterps_envs.closed_form.usable import on_usable_devices
from heterps_envs.cost_tables import CostTables
from heterps_envs.options import bounding_tables, option_tables, options_of
from heterps_envs.problem import Problem
from heterps_envs.useful_options import useful_options


@register("exact")
class ExactPlanner:
    """Dynamic programme over layers, device classes and devices used (`exact.solve`).

    It is optimal by the closed form; the simulator may prefer another plan (see `shortlist`). Where
    the optimum cannot be run as simulated, the answer is the best placement that is found which can
    be (`exact.runnable`), and the bound is that of the optimum: the gap says how far it is.

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

    name, chooses_options = "exact", True

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def plan(self, problem: Problem, budget: Budget) -> Plan:
        """The optimal plan.

        Raises:
            InfeasibleError: No plan exists, or none that was found can be run.
            TooDearError: The problem is too large for a proof.
            HeterpsError: The optimum finds no devices for its stages.
        """
        problem = on_usable_devices(problem) if problem.strategy.is_plain else problem
        question = Question.of(problem, budget, self.seed)
        # That of a bound is no find: no devices may have its links.
        found = None if problem.merges_nodes else question.found
        result = self._solved(problem, proving_tables(problem), budget, found)
        code = proven_code(problem, result)
        if problem.merges_nodes:
            plan = fastest(problem, self._plans(problem, budget))
        else:
            plan = self._runnable(problem, question, code)
        bound = bound_of_all(problem, plan, result, budget, MAX_SECONDS)
        return plan.changed(bound=bound)

    def _runnable(self, problem: Problem, question: Question, code: Code) -> Plan:
        """The plan of an optimum, or the best one that is found which can be run."""
        plan_of = partial(self._answer, problem, question)
        limits = Limits(question.kernel, question.goal)
        return best_runnable(problem, limits, code, plan_of, question.budget)

    def _answer(self, problem: Problem, question: Question, code: Code) -> Plan:
        try:
            return answer(
                problem, question.kernel, code, planner=self.name, seed=self.seed,
                options=question.options,
            )  # fmt: skip
        except InfeasibleError as error:
            # The code is the best of those that fit: there may be others that find their devices.
            raise HeterpsError(f"{error}; choose another planner, such as auto") from error

    def _solved(
        self,
        problem: Problem,
        tables: CostTables,
        budget: Budget,
        found: Callable[[Code, float], None] | None,
    ) -> ExactResult:
        """The optimum of some tables of a problem, or the proof that there is none."""
        seconds, kernel = min(MAX_SECONDS, budget.seconds_left), kernel_tables(tables)
        result = solve(kernel, Goal.of(problem.job), max_seconds=seconds, on_better=found)
        if result.status == "over budget":
            least_s = lower_bound(bounding_tables(problem))
            if math.isinf(least_s):  # no proof is needed
                raise InfeasibleError(explain_infeasible(problem))
            raise TooDearError(_too_large(kernel, seconds, least_s))
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
        asked = [(view, Question.of(view, budget, self.seed)) for view in problem.views]
        own = [(*each, each[1].tables) for each in asked]
        alike = [(*each, replace(each[1].tables, rings=None)) for each in asked]
        for view, question, tables in (*own, *alike):
            try:
                code = proven_code(view, self._solved(view, tables, budget, question.found))
                plans.append(self._runnable(view, question, code))
            except HeterpsError as error:
                reasons.append(error)
        if not plans:
            raise reasons[0]
        return plans


def proving_tables(problem: Problem) -> CostTables:
    """The tables whose optimum bounds all placements that fit by the rule of planners.

    Those of the problem with its options, unless equal nodes share classes: then links are the
    fastest, and an option has the memory of the view where it has most.
    """
    if problem.strategy.is_plain:
        return problem.bounding_tables
    if not problem.merges_nodes:
        return useful_options(problem).tables
    view, apart = problem.views[-1], problem.by_node
    options = options_of(view, problem.strategy)
    tables = option_tables(view, options)
    others = options_of(apart, problem.strategy)
    memory_bytes = tables.memory_bytes.copy()
    for option, room in zip(others, option_tables(apart, others).memory_bytes, strict=True):
        kind = view.class_of[apart.classes[option.device_class].devices[0].name]
        index = options.index(option._replace(device_class=kind))
        memory_bytes[index] = max(memory_bytes[index], room)
    return replace(tables, memory_bytes=memory_bytes)


def proven_code(problem: Problem, result: ExactResult) -> Code:
    """The code of a finished proof.

    Raises:
        InfeasibleError: The proof is that there is none.
    """
    if result.code is None:
        raise InfeasibleError(explain_infeasible(problem))
    return result.code


def _too_large(kernel: KernelTables, seconds: float, least_s: float) -> str:
    room = WorkLimits().table_bytes
    limit = f"it may take {seconds:.3g} s"
    if table_bytes(kernel) > room:
        limit = f"its tables may take {room / 1e6:.3g} MB"
    ways = f" in {kernel.num_options} ways" if kernel.num_options > kernel.num_classes else ""
    return (
        f"exact: {kernel.num_layers} layers on {kernel.num_classes} device classes{ways} take "
        f"about {predicted_seconds(kernel):.3g} s or more and {table_bytes(kernel) / 1e6:.3g} MB "
        f"({limit}); all that is known of the optimum is that no step is below "
        f"{least_s:.4g} s; choose another planner, such as auto"
    )
