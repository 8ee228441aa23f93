"""How far a policy is from the optimum, on problems that it never saw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_agents.decode import TARGETS_PER_ROUND, Decoded, decode
from heterps_agents.exact import solve
from heterps_agents.policy import Policy
from heterps_envs.closed_form import kernel_tables
from heterps_envs.problem import CostTables
from heterps_envs.stage_problems import pack_problems

# Greedy decoding costs so little that it affords more targets than a beam.
GREEDY_TARGETS = 32


# What the curves of a training run show, and what the scores of a finished policy add.
CURVE_WIDTHS = {"greedy": 1, "beam16": 16}
SCORE_WIDTHS = {**CURVE_WIDTHS, "beam64": 64}


class Gap(NamedTuple):
    """Step time over the optimum, minus 1, over a set of problems.

    A problem without any placement found counts as an infinite gap.
    """

    median: float
    mean: float
    p95: float
    solved: float

    @classmethod
    def of(cls, gaps: NDArray[np.float64]) -> Gap:
        """Summary of the gaps; `solved` is the share below 0.1 %."""
        quantiles = np.quantile(gaps, [0.5, 0.95], method="lower")
        return cls(
            median=float(quantiles[0]),
            mean=float(gaps.mean()),
            p95=float(quantiles[1]),
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

    def decoded(self, policy: Policy, width: int = 1, temperature: float = 0.0) -> Decoded:
        """The policy's placements, from nothing else than the policy."""
        targets = GREEDY_TARGETS if width == 1 else TARGETS_PER_ROUND
        return decode(
            policy,
            self._problems,
            width=width,
            targets_per_round=targets,
            temperature=temperature,
        )

    def gaps(self, policy: Policy, width: int = 1) -> NDArray[np.float64]:
        """(N,) gaps of `decoded`."""
        gaps = self.decoded(policy, width).step_time_s / self.optimum_s - 1
        return np.asarray(np.maximum(gaps, 0.0))

    def gap(self, policy: Policy, width: int = 1) -> Gap:
        """Summary of `gaps`."""
        return Gap.of(self.gaps(policy, width))


class TestSets:
    """Sets of problems by name, and how far a policy is from their optima.

    Args:
        sets: Problems by name of the set.
    """

    # pytest would take the name for one of its own.
    __test__ = False

    def __init__(self, sets: Mapping[str, Sequence[CostTables]]) -> None:
        self.held = {name: HeldOut(tables) for name, tables in sets.items() if tables}

    def gaps(self, policy: Policy, widths: Mapping[str, int] = CURVE_WIDTHS) -> dict[str, Gap]:
        """Gaps by set and decoding: `in-range/greedy`, `in-range/beam16`, ...

        Args:
            policy: To be judged.
            widths: Of the beams by name; 1 is greedy decoding.
        """
        return {
            f"{name}/{decoding}": held.gap(policy, width)
            for name, held in self.held.items()
            for decoding, width in widths.items()
        }
