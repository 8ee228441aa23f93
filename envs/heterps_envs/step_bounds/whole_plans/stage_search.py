"""The search through sets of stages for one problem, with what it learns of replicas' sums."""

from __future__ import annotations

from heterps_envs.arrays import Floats
from heterps_envs.problem import Problem
from heterps_envs.step_bounds.needs import Needs
from heterps_envs.step_bounds.whole_plans.search import SOME, find_stages
from heterps_envs.step_bounds.whole_plans.staged import Staged
from heterps_envs.step_bounds.whole_plans.sum_choices import Allowance

# Of what replicas divide, in all.
MOST_CHOICES = 300_000


class StageSearch:
    """Asked for one number of seconds after the other."""

    def __init__(self, problem: Problem, needs: Needs) -> None:
        self._problem, self._needs = problem, needs
        self.staged, self._allowed = Staged.of(problem, needs), Allowance(MOST_CHOICES)

    def find(
        self, step_s: float, shares: Floats, worth: Floats, most_steps: int
    ) -> tuple[int, int, int]:
        """Looks for stages that may do all in so many seconds.

        What it finds survives with its replicas' sums to the last digit, as far as they are known.

        Args:
            step_s: The seconds.
            shares: (O, L, L) see `shares.most_shares`.
            worth: (L,) any worths of layers.
            most_steps: That it may take.

        Returns:
            As of `search.find_stages`.
        """
        needs, staged, taken = self._needs, self.staged, 0
        while True:
            left = most_steps - taken
            found, count, steps = find_stages(needs, staged, step_s, shares, worth, left)
            taken += steps
            if found != SOME or not staged.known.add(
                self._problem, needs, staged.spans[:count], self._allowed
            ):
                return found, count, taken
