"""Expert iteration: searches, one that the policy guides, give it better placements to imitate.

What an exact solver proves needs no search. Of all other problems the best placement known is what
the search has found, in this round or an earlier one (Anthony et al., Thinking Fast and Slow with
Deep Learning and Tree Search, 2017).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from heterps_agents.interface.planner import Budget
from heterps_agents.interface.question import Question
from heterps_agents.learned.efforts import effort_named
from heterps_agents.learned.policy import Policy
from heterps_agents.learned.search import learned_code
from heterps_agents.search.together import searched
from heterps_agents.training.examples import OptimalPlacements
from heterps_configs.documents.training import ChainTrainingConfig
from heterps_envs.arrays import Code, Integers
from heterps_envs.closed_form.kernel_tables import KernelTables, cost_tables
from heterps_envs.closed_form.objective import STEP_TIME
from heterps_envs.environments.stage.packed import kernel_tables_of
from heterps_envs.environments.stage.pool import ProblemPool, bottleneck_s

# Of the genetic search and of the annealing that go on from what the policy's search finds.
SEARCH_EVALUATIONS = 100_000
# Problems of one update: between two of them a run can be stopped.
_CHUNK = 16


class ExpertRounds:
    """Rounds of search over the problems of a pool, evenly between passes of imitation.

    Args:
        config: Its passes, rounds and effort.
        pool: Its best known step times and bottlenecks become those of what is found.
        optima: Get the placements.

    Attributes:
        done: Rounds that are over.
        searched: Problems of the round that goes on.
        improved: How many of these got a better placement.
        gained: Sum of log(step time before / after) over them, where there was one before.
    """

    def __init__(
        self, config: ChainTrainingConfig, pool: ProblemPool, optima: OptimalPlacements
    ) -> None:
        self._config, self._pool, self._optima = config, pool, optima
        self.done = self.searched = self.improved = 0
        self.gained = 0.0

    def is_due(self, passes: int) -> bool:
        """Whether a round comes before the next pass."""
        config = self._config
        due = config.imitation_passes * (self.done + 1) // (config.expert_rounds + 1)
        return self.done < config.expert_rounds and passes >= due

    @property
    def rows(self) -> Integers:
        """Problems without a proven optimum."""
        return np.flatnonzero(~self._optima.is_proven)

    def load_compiled_code(self, policy: Policy) -> None:
        """Searches one problem and forgets it, so that compilation is no part of the run's time."""
        self._answer(0, policy)

    def search_some(self, policy: Policy) -> bool:
        """Searches the next problems of the round; returns whether it is over."""
        rows = self.rows
        for row in rows[self.searched : self.searched + _CHUNK]:
            self._search(int(row), policy)
        self.searched = min(self.searched + _CHUNK, len(rows))
        return self.searched == len(rows)

    def end(self) -> None:
        """Ends the round."""
        self.done += 1
        self.searched, self.improved, self.gained = 0, 0, 0.0

    def _search(self, row: int, policy: Policy) -> None:
        pool = self._pool
        code, step_time_s, kernel = self._answer(row, policy)
        is_known = bool(self._optima.is_known[row])
        before_s = pool.step_time_s[row]
        # Without a placement to imitate, one that is slower than the greedy rule's is better too.
        if code is None or not np.isfinite(step_time_s) or (is_known and step_time_s >= before_s):
            return
        self._optima.put(row, code, is_proven=False)
        pool.step_time_s[row] = step_time_s
        pool.bottleneck_s[row] = bottleneck_s(code, kernel, step_time_s)
        self.improved += 1
        self.gained += float(np.log(before_s / step_time_s))

    def _answer(self, row: int, policy: Policy) -> tuple[Code | None, float, KernelTables]:
        """What the search finds for a problem, its step time, and the problem."""
        kernel = kernel_tables_of(self._pool.problems, row)
        question = Question(cost_tables(kernel), kernel, STEP_TIME, Budget())
        code = learned_code(policy, question, effort_named(self._config.expert_effort))
        code = searched(question, [] if code is None else [code], SEARCH_EVALUATIONS)
        return code, math.inf if code is None else question.cost(code), kernel

    def state(self) -> dict[str, Any]:
        """What `restore` needs; pool and optima keep their own."""
        return {
            "done": self.done, "searched": self.searched,
            "improved": self.improved, "gained": self.gained,
        }  # fmt: skip

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on where another one of the same config stood."""
        for name, value in state.items():
            setattr(self, name, value)
