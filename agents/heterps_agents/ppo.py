"""The planner `ppo`: a trained policy, decoded with a beam and polished by a short local search."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_agents.annealing import POLISH_TEMPERATURE, anneal, simple_codes
from heterps_agents.answer import answer
from heterps_agents.decode import ROUNDS, TARGETS_PER_ROUND, Decoded, beam, decode
from heterps_agents.objective import Goal, code_cost
from heterps_agents.planner import Budget
from heterps_agents.policy import Policy
from heterps_agents.registry import register
from heterps_configs.plan import Plan
from heterps_envs.bounds import price_bound
from heterps_envs.closed_form import CLASS_MASK, FITS, KernelTables, evaluate, kernel_tables
from heterps_envs.problem import CostTables, Problem
from heterps_envs.problem_pool import bottleneck_s
from heterps_envs.stage_problems import pack_problems

Code = NDArray[np.int16]

DEFAULT_POLICY = "generalist"
WIDTH, POLISH_EVALUATIONS = 16, 10_000
# For the objective price: how many targets, and up to how many times the fastest known placement.
PRICE_TARGETS, SLOWEST = 12, 32.0
# All subsets of so many device classes are tried; of more, only the cheapest ones for the work.
_MOST_CLASSES_FOR_SUBSETS = 4


@register("ppo")
class PolicyPlanner:
    """Never worse than `greedy` and the proportional planners: their best is where it starts.

    Args:
        seed: Of the polish; the beam has no randomness.
        policy: By default the shipped generalist.
        width: Partial placements that the beam keeps for each target.
    """

    name = "ppo"

    def __init__(self, seed: int = 0, policy: Policy | None = None, width: int = WIDTH) -> None:
        self.seed, self.width = seed, width
        self._policy = policy

    @property
    def policy(self) -> Policy:
        """The policy; the shipped one is read when it is first needed."""
        if self._policy is None:
            self._policy = Policy.load(DEFAULT_POLICY)
        return self._policy

    def plan(self, problem: Problem, budget: Budget) -> Plan:
        """The best plan found.

        Raises:
            InfeasibleError: No plan was found that keeps memory and the throughput floor.
        """
        kernel, goal = kernel_tables(problem.tables), Goal.of(problem.job)
        if math.isinf(price_bound(problem.tables)[0]):
            return answer(problem, kernel, None, planner=self.name, seed=self.seed)
        start = _cheapest(simple_codes(problem, kernel, goal, budget), kernel, goal)
        code = self.best_code(problem.tables, kernel, goal, budget, start)
        code = anneal(
            code, kernel, goal, budget, self.seed,
            temperature=POLISH_TEMPERATURE, max_evaluations=POLISH_EVALUATIONS,
        )  # fmt: skip
        return answer(problem, kernel, code, planner=self.name, seed=self.seed)

    def best_code(
        self, tables: CostTables, kernel: KernelTables, goal: Goal, budget: Budget, start: Code
    ) -> Code:
        """The best of `start` and what the policy finds, unpolished.

        Args:
            tables: The problem.
            kernel: The same tables, for the kernels.
            goal: What to minimise.
            budget: Charged `width` evaluations for every beam.
            start: (L,) int16; it need not fit.
        """
        if budget.is_exhausted:
            return start
        candidates = [start, self._fastest(tables, kernel, budget, start)]
        if goal.is_price and not budget.is_exhausted:
            candidates += self._cheap(tables, kernel, goal, budget, candidates[-1])
        return _cheapest(candidates, kernel, goal)

    def _fastest(
        self, tables: CostTables, kernel: KernelTables, budget: Budget, start: Code
    ) -> Code:
        """Code of the least step time."""
        effort = Effort.within(budget.evaluations_left, self.width)
        found = decode(
            self.policy,
            pack_problems([tables]),
            width=effort.width,
            rounds=effort.rounds,
            targets_per_round=effort.targets,
            known=_as_known(start, kernel),
            should_stop=lambda: budget.is_exhausted,
        )
        budget.spend(found.evaluations)
        # Without any placement found, the start tells the search after this one where to begin.
        return np.asarray(found.code[0] if math.isfinite(found.step_time_s[0]) else start)

    def _cheap(
        self, tables: CostTables, kernel: KernelTables, goal: Goal, budget: Budget, fastest: Code
    ) -> list[Code]:
        """Codes that use few and cheap devices: one beam for each set of classes and target."""
        fastest_s = float(evaluate(fastest[None], kernel)[0][0])
        slowest_s = min(goal.floor_s, SLOWEST * fastest_s)
        if not fastest_s < slowest_s:
            return []
        subsets = [
            subset
            for subset in _class_subsets(tables)
            if math.isfinite(price_bound(_restricted(tables, subset))[0])
        ]
        left = budget.evaluations_left
        if left is not None:
            subsets = subsets[: left // (self.width * PRICE_TARGETS)]
        if not subsets:
            return []
        packed = pack_problems([_restricted(tables, subset) for subset in subsets])
        targets = np.geomspace(packed.least_target_s, slowest_s, PRICE_TARGETS, axis=1)
        slowest = np.full(len(subsets), slowest_s)
        found = beam(
            self.policy, packed, targets, np.full(targets.shape, np.inf), self.width, slowest
        )
        budget.spend(targets.size * self.width)
        codes = []
        for subset, times, rows in zip(subsets, found.step_time_s, found.code, strict=True):
            names = np.array(subset, np.int16)
            codes += [_renamed(row, names) for row in rows[np.isfinite(times)]]
        return codes


class Effort(NamedTuple):
    """How much a decoding does: `rounds * targets * width` evaluations."""

    width: int
    rounds: int
    targets: int

    @classmethod
    def within(cls, evaluations: int | None, width: int) -> Effort:
        """The usual effort, or what a smaller budget allows: first narrower beams, then fewer."""
        if evaluations is None:
            return cls(width, ROUNDS, TARGETS_PER_ROUND)
        beams = ROUNDS * TARGETS_PER_ROUND
        if evaluations >= beams:
            return cls(min(width, evaluations // beams), ROUNDS, TARGETS_PER_ROUND)
        rounds = min(ROUNDS, evaluations)
        return cls(1, rounds, evaluations // rounds)


def _cheapest(codes: Sequence[Code], kernel: KernelTables, goal: Goal) -> Code:
    """The best code, or the one that comes nearest to fitting."""
    return min(codes, key=lambda code: float(code_cost(code, kernel, goal.is_price, goal.floor_s)))


def _as_known(code: Code, kernel: KernelTables) -> Decoded | None:
    """A placement as a start of `decode`; None where it does not fit."""
    step_time_s, _, verdict = evaluate(code[None], kernel)
    if verdict[0] != FITS:
        return None
    bottleneck = np.array([bottleneck_s(code, kernel, float(step_time_s[0]))])
    return Decoded(step_time_s, bottleneck, code[None], 0)


def _class_subsets(tables: CostTables) -> Iterator[tuple[int, ...]]:
    """Sets of device classes that might be all that a cheap placement uses, the likeliest first."""
    dollars = (tables.compute_s * tables.price_usd_per_hour).sum(axis=0)
    cheapest_first = [int(kind) for kind in np.argsort(dollars, kind="stable")]
    if tables.num_classes > _MOST_CLASSES_FOR_SUBSETS:
        for size in range(1, tables.num_classes + 1):
            yield tuple(sorted(cheapest_first[:size]))
        return
    for size in range(1, tables.num_classes + 1):
        for subset in combinations(cheapest_first, size):
            yield tuple(sorted(subset))


def _restricted(tables: CostTables, classes: Sequence[int]) -> CostTables:
    """The problem with some device classes only."""
    kept = list(classes)
    fields = {name: getattr(tables, name) for name in CostTables.__dataclass_fields__}
    for name in ("forward_s", "backward_s", "optimizer_s"):
        fields[name] = fields[name][:, kept]
    for name in ("device_count", "memory_bytes", "price_usd_per_hour"):
        fields[name] = fields[name][kept]
    for name in ("latency_s", "inverse_bandwidth_s_per_byte"):
        fields[name] = fields[name][np.ix_(kept, kept)]
    return CostTables(**fields)


def _renamed(code: Code, names: NDArray[np.int16]) -> Code:
    """A code with class i replaced by `names[i]`."""
    return np.asarray((code & ~CLASS_MASK) | names[code & CLASS_MASK], np.int16)
