"""Problems to train on, each with its exact optimum: the pool, and how it stays fresh."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_agents.exact.frontier import solve_frontier
from heterps_agents.exact.solve import predicted_seconds, solve
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.question import Question
from heterps_agents.learned.decode import decode
from heterps_agents.learned.policy import Policy
from heterps_agents.search.greedy import greedy_code
from heterps_agents.search.together import searched
from heterps_agents.training.examples import OptimalPlacements
from heterps_configs.documents.training import ChainTrainingConfig
from heterps_configs.errors import HeterpsError
from heterps_envs.closed_form.kernel_tables import kernel_tables
from heterps_envs.closed_form.objective import STEP_TIME
from heterps_envs.cost_tables import CostTables
from heterps_envs.environments.stage.packed import (
    StageProblems,
    empty_problems,
    pack_problems,
    put_problem,
)
from heterps_envs.environments.stage.pool import ProblemPool, bottleneck_s
from heterps_envs.environments.stage.priced_pool import Anchor, PricedPool
from heterps_envs.problem_sets.chains import generate
from heterps_envs.problem_sets.wide_chains import generate_wide

Objective = Literal["throughput", "price", "budget"]

_BATCH = 64
# Of the searches that stand in for an exact solver, at first.
REFERENCE_EVALUATIONS = 20_000
# A reference may cost so much; above it the policy's own best placement stands in for the optimum.
_MOST_EXACT_S = 0.02


class Referenced(NamedTuple):
    """A problem, its optimal step time and the bottleneck of that placement, in seconds.

    Where prices count, `anchors` are the placements on its frontier of step time and price.
    `code` (L,) is the optimum itself, or what searches found; None where neither is known.
    """

    tables: CostTables
    step_time_s: float
    bottleneck_s: float
    anchors: tuple[Anchor, ...] = ()
    code: NDArray[np.int32] | None = None
    is_proven: bool = True


def with_frontier(tables: CostTables, longest_exact_s: float) -> Referenced | None:
    """The problem with all placements that no other beats in step time and price, proven.

    Returns:
        None when it has no placement, or the solver would take longer by prediction.
    """
    kernel = kernel_tables(tables)
    found = solve_frontier(kernel, max_seconds=longest_exact_s)
    if not found.points:
        return None
    anchors = tuple(
        Anchor(
            point.step_time_s,
            bottleneck_s(point.code, kernel, point.step_time_s),
            point.price_usd_per_hour,
        )
        for point in found.points
    )
    return Referenced(tables, anchors[0].step_time_s, anchors[0].bottleneck_s, anchors)


def with_optimum(tables: CostTables) -> Referenced | None:
    """The problem with its exact optimum; None when it has no placement or the solver gave up."""
    kernel = kernel_tables(tables)
    found = solve(kernel)
    if found.code is None:
        return None
    bottleneck = bottleneck_s(found.code, kernel, found.step_time_s)
    return Referenced(tables, found.step_time_s, bottleneck, code=found.code)


def with_reference(tables: CostTables, longest_exact_s: float) -> Referenced | None:
    """The problem with its optimum or, where that takes too long, what short searches find.

    Args:
        tables: The problem.
        longest_exact_s: The optimum may take so long by prediction.

    Returns:
        None when no placement is found.
    """
    if predicted_seconds(kernel_tables(tables)) <= longest_exact_s:
        return with_optimum(tables)
    kernel = kernel_tables(tables)
    question = Question(tables, kernel, STEP_TIME, Budget())
    code = greedy_code(question)
    code = searched(question, [] if code is None else [code], REFERENCE_EVALUATIONS)
    if code is None:
        return None
    step_time_s = question.cost(code)
    bottleneck = bottleneck_s(code, kernel, step_time_s)
    return Referenced(tables, step_time_s, bottleneck, code=code, is_proven=False)


class ProblemSource:
    """An endless stream of generated problems with references.

    Args:
        config: Sizes and seed.
    """

    def __init__(self, config: ChainTrainingConfig) -> None:
        self.config = config
        self._batch, self._taken = -1, _BATCH
        self._waiting: list[CostTables] = []

    def take(self, count: int, *, proven_only: bool = False) -> list[Referenced]:
        """The next problems that have a placement; those without a proven one may be left out."""
        taken: list[Referenced] = []
        while len(taken) < count:
            if self._taken == _BATCH:
                self._start_batch(self._batch + 1)
            tables = self._waiting[self._taken]
            self._taken += 1
            if proven_only and not self._is_quick(tables):
                continue
            problem = self.referenced(tables)
            if problem is not None:
                taken.append(problem)
        return taken

    def referenced(self, tables: CostTables) -> Referenced | None:
        """A problem with what its episodes are compared with; None where that is not found."""
        find = with_reference if self.config.objective == "throughput" else with_frontier
        return find(tables, self.config.longest_exact_s)

    def _is_quick(self, tables: CostTables) -> bool:
        """Whether the optimum will be proven, by prediction."""
        return predicted_seconds(kernel_tables(tables)) <= self.config.longest_exact_s

    def state(self) -> dict[str, int]:
        """Where the stream stands."""
        return {"batch": self._batch, "taken": self._taken}

    def restore(self, state: Mapping[str, int]) -> None:
        """Goes on where another stream of the same config stood."""
        self._start_batch(state["batch"])
        self._taken = state["taken"]

    def _start_batch(self, batch: int) -> None:
        config = self.config
        self._batch, self._taken = batch, 0
        seed = config.seed * 1_000_003 + batch
        draw = generate_wide if config.distribution == "wide" else generate
        self._waiting = draw(_BATCH, seed, config.layers, config.classes, config.devices_per_class)


def pool_of(
    problems: Sequence[Referenced],
    target_range: tuple[float, float],
    max_layers: int = 0,
    max_classes: int = 0,
    keeps_best: bool = False,
    prioritised_share: float = 0.0,
    objective: Objective = "throughput",
) -> ProblemPool:
    """A pool with the given references; see `ProblemPool` and `PricedPool` for the arguments."""
    packed = empty_problems(
        len(problems),
        max_layers or max(entry.tables.num_layers for entry in problems),
        max_classes or max(entry.tables.num_options for entry in problems),
    )
    for row, entry in enumerate(problems):
        put_problem(packed, row, entry.tables)
    if objective != "throughput":
        anchors = [entry.anchors for entry in problems]
        return PricedPool(packed, anchors, target_range, prioritised_share, objective)
    return ProblemPool(
        packed,
        np.array([entry.step_time_s for entry in problems]),
        np.array([entry.bottleneck_s for entry in problems]),
        target_range,
        keeps_best,
        prioritised_share,
    )


def optima_of(problems: Sequence[Referenced], max_layers: int) -> OptimalPlacements:
    """The optima of a pool's problems, as far as they are known.

    Args:
        problems: Of the pool, row by row.
        max_layers: Of the pool.
    """
    optima = OptimalPlacements(len(problems), max_layers)
    for row, entry in enumerate(problems):
        optima.put(row, entry.code, entry.is_proven)
    return optima


def refresh(
    pool: ProblemPool,
    optima: OptimalPlacements,
    source: ProblemSource,
    used: NDArray[np.int64],
    count: int,
    rng: np.random.Generator,
    *,
    proven_only: bool = False,
) -> None:
    """Replaces random problems of a pool by new ones.

    Args:
        pool: Written to.
        optima: Of its problems, written to.
        source: Of the new problems.
        used: Rows that running episodes use; they stay.
        count: How many.
        rng: Chooses the rows.
        proven_only: New ones have a proven optimum: those without one are searched for a while.
    """
    free = np.setdiff1d(np.arange(pool.problems.num_problems), used)
    chosen = rng.permutation(free)[:count]
    for row, entry in zip(chosen, source.take(len(chosen), proven_only=proven_only), strict=True):
        tables, step_time_s, bottleneck, anchors, code, is_proven = entry
        pool.replace(int(row), tables, step_time_s, bottleneck, anchors)
        optima.put(int(row), code, is_proven)


def perturbed(
    tables: Sequence[CostTables], count: int, seed: int, class_sigma: float, layer_sigma: float
) -> list[CostTables]:
    """Copies of problems as they might soon become: the seconds of classes and layers drift.

    The problems themselves come first.

    Args:
        tables: At least one.
        count: How many to return.
        seed: Of the drift.
        class_sigma: Standard deviation of the logarithm of a factor for each class.
        layer_sigma: The same for each layer and class.
    """
    rng = np.random.default_rng(seed)
    out = list(tables)[:count]
    while len(out) < count:
        base = tables[len(out) % len(tables)]
        drift = np.exp(
            class_sigma * rng.standard_normal(base.num_classes)
            + layer_sigma * rng.standard_normal(base.forward_s.shape)
        )
        seconds = ("forward_s", "backward_s", "optimizer_s")
        out.append(replace(base, **{name: getattr(base, name) * drift for name in seconds}))
    return out


def references(
    tables: Sequence[CostTables], policy: Policy, should_stop: Callable[[], bool]
) -> list[Referenced]:
    """The problems with their optima where those are quick, else with the policy's best placements.

    Raises:
        HeterpsError: No problem has a placement.
    """
    exact = all(predicted_seconds(kernel_tables(entry)) < _MOST_EXACT_S for entry in tables)
    found: list[Referenced] = []
    for entry in tables:
        if found and should_stop():
            break
        problem = with_optimum(entry) if exact else _with_beam(entry, policy)
        if problem is not None:
            found.append(problem)
    if not found:
        raise HeterpsError("there is no placement to learn from: no problem has one")
    return found


def _with_beam(tables: CostTables, policy: Policy) -> Referenced | None:
    packed: StageProblems = pack_problems([tables])
    best = decode(policy, packed, width=4)
    if math.isinf(best.step_time_s[0]):
        return None
    return Referenced(tables, float(best.step_time_s[0]), float(best.bottleneck_s[0]))
