"""How far a policy is from the optimum, on problems that it never saw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_agents.exact.solve import solve
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.question import Question
from heterps_agents.learned.decode import TARGETS_PER_ROUND, Decoded, decode
from heterps_agents.learned.efforts import effort_named
from heterps_agents.learned.policy import Policy
from heterps_agents.learned.search import learned_code
from heterps_envs.closed_form.kernel_tables import KernelTables, kernel_tables
from heterps_envs.closed_form.objective import Goal
from heterps_envs.cost_tables import CostTables
from heterps_envs.environments.stage.packed import pack_problems

# Greedy decoding costs so little that it affords more targets than a beam.
GREEDY_TARGETS = 64


# What the curves of a training run show, and what the scores of a finished policy add.
CURVE_WIDTHS = {"greedy": 1, "beam16": 16}
SCORE_WIDTHS = {**CURVE_WIDTHS, "beam64": 64}
# Curves of the objective price: efforts, and the longest step over the shortest possible one.
CHEAPEST_EFFORTS, CHEAPEST_FLOOR = ("fast", "normal"), 1.5

LEAST_FOR_P95 = 20


class Gap(NamedTuple):
    """Step time over the optimum, minus 1, over a set of problems.

    A problem without any placement found counts as an infinite gap. Of fewer than `LEAST_FOR_P95`
    problems p95 is the largest gap: none of them is one in twenty.
    """

    median: float
    mean: float
    p95: float
    solved: float

    @classmethod
    def of(cls, gaps: NDArray[np.float64]) -> Gap:
        """Summary of the gaps; `solved` is the share below 0.1 %."""
        median, p95 = np.quantile(gaps, [0.5, 0.95], method="lower")
        return cls(
            median=float(median),
            mean=float(gaps.mean()),
            p95=float(p95 if len(gaps) >= LEAST_FOR_P95 else gaps.max()),
            solved=float((gaps < 1e-3).mean()),
        )


class HeldOut:
    """Problems with their exact optima. Problems that have no placement at all are left out.

    Attributes:
        tables: The problems.
        optimum_s: (N,) their shortest step times.
    """

    def __init__(self, tables: Sequence[CostTables]) -> None:
        optima = [solve(kernel_tables(entry)) for entry in tables]
        solved = [index for index, result in enumerate(optima) if result.status == "optimal"]
        self.tables = [tables[index] for index in solved]
        self.optimum_s = np.array([optima[index].step_time_s for index in solved])
        self._problems = pack_problems(self.tables)

    def decoded(self, policy: Policy, width: int = 1) -> Decoded:
        """The policy's placements, from nothing else than the policy."""
        targets = GREEDY_TARGETS if width == 1 else TARGETS_PER_ROUND
        return decode(policy, self._problems, width=width, targets_per_round=targets)

    def gaps(self, policy: Policy, width: int = 1) -> NDArray[np.float64]:
        """(N,) gaps of `decoded`."""
        gaps = self.decoded(policy, width).step_time_s / self.optimum_s - 1
        return np.asarray(np.maximum(gaps, 0.0))

    def gap(self, policy: Policy, width: int = 1) -> Gap:
        """Summary of `gaps`."""
        return Gap.of(self.gaps(policy, width))


class CheapestHeldOut:
    """Problems with the objective price under a throughput floor, and their exact optima.

    Args:
        tables: The problems. Those whose optimum is not found quickly are left out.
    """

    def __init__(self, tables: Sequence[CostTables]) -> None:
        self._problems: list[tuple[CostTables, KernelTables, Goal]] = []
        optima = []
        for entry in tables:
            kernel = kernel_tables(entry)
            fastest = solve(kernel)
            goal = Goal(is_price=True, floor_s=CHEAPEST_FLOOR * fastest.step_time_s)
            cheapest = solve(kernel, goal) if fastest.code is not None else fastest
            if cheapest.code is not None:
                self._problems.append((entry, kernel, goal))
                optima.append(goal.cost(cheapest.code, kernel))
        self.optimum = np.array(optima)

    def gap(self, policy: Policy, effort: str) -> Gap:
        """Of what the planner `ppo` finds with an effort, from the policy alone."""
        gaps = np.full(len(self.optimum), np.inf)
        for index, (tables, kernel, goal) in enumerate(self._problems):
            code = learned_code(
                policy, Question(tables, kernel, goal, Budget()), effort_named(effort)
            )
            if code is not None:
                gaps[index] = max(0.0, goal.cost(code, kernel) / self.optimum[index] - 1)
        return Gap.of(gaps)


class TestSets:
    """Sets of problems by name, and how far a policy is from their optima.

    Args:
        sets: Problems by name of the set.
        cheapest: Problems to place for the least price, see `CheapestHeldOut`.
    """

    # pytest would take the name for one of its own.
    __test__ = False

    def __init__(
        self, sets: Mapping[str, Sequence[CostTables]], cheapest: Sequence[CostTables] = ()
    ) -> None:
        self.cheapest = CheapestHeldOut(cheapest) if cheapest else None
        self.held = {name: HeldOut(tables) for name, tables in sets.items() if tables}

    def gaps(self, policy: Policy, widths: Mapping[str, int] = CURVE_WIDTHS) -> dict[str, Gap]:
        """Gaps by set and decoding: `development/greedy`, `cheapest/fast`, ...

        Args:
            policy: To be judged.
            widths: Of the beams by name; 1 is greedy decoding.
        """
        gaps = {
            f"{name}/{decoding}": held.gap(policy, width)
            for name, held in self.held.items()
            for decoding, width in widths.items()
        }
        if self.cheapest is not None:
            for effort in CHEAPEST_EFFORTS:
                gaps[f"cheapest/{effort}"] = self.cheapest.gap(policy, effort)
        return gaps
