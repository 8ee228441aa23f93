"""Problems to train on, each with its exact optimum: the pool, and how it stays fresh."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_agents.decode import decode
from heterps_agents.exact import predicted_seconds, solve
from heterps_agents.policy import Policy
from heterps_configs.errors import HeterpsError
from heterps_configs.training_config import TrainingConfig
from heterps_envs.closed_form import kernel_tables
from heterps_envs.generator import generate
from heterps_envs.problem import CostTables
from heterps_envs.problem_pool import ProblemPool, bottleneck_s
from heterps_envs.stage_problems import StageProblems, empty_problems, pack_problems, put_problem

_BATCH = 64
# A reference may cost so much; above it the policy's own best placement stands in for the optimum.
_MOST_EXACT_S = 0.02


class Referenced(NamedTuple):
    """A problem, its optimal step time and the bottleneck of that placement, in seconds."""

    tables: CostTables
    step_time_s: float
    bottleneck_s: float


def with_optimum(tables: CostTables) -> Referenced | None:
    """The problem with its exact optimum; None when it has no placement or the solver gave up."""
    kernel = kernel_tables(tables)
    found = solve(kernel)
    if found.code is None:
        return None
    return Referenced(
        tables, found.step_time_s, bottleneck_s(found.code, kernel, found.step_time_s)
    )


class ProblemSource:
    """An endless stream of generated problems with their optima.

    Args:
        config: Sizes and seed.
        first_batch: Where a resumed run goes on, so that it sees new problems.
    """

    def __init__(self, config: TrainingConfig, first_batch: int = 0) -> None:
        self.config, self.batch = config, first_batch
        self._waiting: Iterator[CostTables] = iter(())

    def take(self, count: int) -> list[Referenced]:
        """The next problems that have a placement."""
        taken: list[Referenced] = []
        while len(taken) < count:
            tables = next(self._waiting, None)
            if tables is None:
                self._waiting = iter(self._next_batch())
            elif (problem := with_optimum(tables)) is not None:
                taken.append(problem)
        return taken

    def _next_batch(self) -> list[CostTables]:
        config = self.config
        seed = config.seed * 1_000_003 + self.batch
        self.batch += 1
        return generate(_BATCH, seed, config.layers, config.classes, config.devices_per_class)


def pool_of(
    problems: Sequence[Referenced],
    target_range: tuple[float, float],
    max_layers: int = 0,
    max_classes: int = 0,
    keeps_best: bool = False,
) -> ProblemPool:
    """A pool with the given references; see `ProblemPool` for the arguments."""
    packed = empty_problems(
        len(problems),
        max_layers or max(entry.tables.num_layers for entry in problems),
        max_classes or max(entry.tables.num_classes for entry in problems),
    )
    for row, entry in enumerate(problems):
        put_problem(packed, row, entry.tables)
    return ProblemPool(
        packed,
        np.array([entry.step_time_s for entry in problems]),
        np.array([entry.bottleneck_s for entry in problems]),
        target_range,
        keeps_best,
    )


def refresh(
    pool: ProblemPool,
    source: ProblemSource,
    used: NDArray[np.int64],
    count: int,
    rng: np.random.Generator,
) -> None:
    """Replaces random problems of a pool by new ones.

    Args:
        pool: Written to.
        source: Of the new problems.
        used: Rows that running episodes use; they stay.
        count: How many.
        rng: Chooses the rows.
    """
    free = np.setdiff1d(np.arange(pool.problems.num_problems), used)
    chosen = rng.permutation(free)[:count]
    for row, entry in zip(chosen, source.take(len(chosen)), strict=True):
        pool.replace(int(row), *entry)


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
        changed: dict[str, NDArray[np.float64]] = {
            name: getattr(base, name) * drift for name in ("forward_s", "backward_s", "optimizer_s")
        }
        fields = {name: getattr(base, name) for name in CostTables.__dataclass_fields__}
        out.append(CostTables(**(fields | changed)))
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
