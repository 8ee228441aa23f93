"""A trained placement policy: weights in one .npz file, inference in NumPy, without torch or SB3.

from heterps_agents.learned.policy import Policy
policy = Policy.load("generalist")
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from heterps_agents.learned.policy_file import StoredPolicy
from heterps_agents.learned.policy_kernels import ScorerWeights, score
from heterps_envs.environments.stage.state import (
    FEATURE_VERSION,
    PRICED_FEATURE_VERSION,
    feature_sizes,
)

Floats = NDArray[np.float32]


class Policy(StoredPolicy):
    """The network of `heterps_agents.training.network.CandidateScorer` as NumPy arrays.

    Attributes:
        compiled: The weights that compiled searches read.
    """

    problems: ClassVar = None
    wrong_problems: ClassVar = "places graphs, not chains of layers"
    feature_versions: ClassVar = (FEATURE_VERSION, PRICED_FEATURE_VERSION)

    def __init__(self, weights: Mapping[str, NDArray[Any]], meta: Mapping[str, Any]) -> None:
        super().__init__(weights, meta)
        self.compiled = ScorerWeights(
            candidate_in=self._transposed["candidate_in"],
            candidate_in_bias=self.weights["candidate_in.bias"],
            state_in=self._transposed["state_in"],
            candidate_hidden=self._transposed["candidate_hidden"],
            candidate_hidden_bias=self.weights["candidate_hidden.bias"],
            score_candidate=self._transposed["score_candidate"],
            score_candidate_bias=self.weights["score_candidate.bias"],
            score_context=self._transposed["score_context"],
            score_out=self.weights["score_out.weight"][0],
        )

    @classmethod
    def shapes(
        cls, hidden: int, feature_version: int, weights: Mapping[str, NDArray[Any]]
    ) -> dict[str, tuple[int, ...]]:
        """See `StoredPolicy.shapes`."""
        candidate, state = feature_sizes(with_prices=feature_version == PRICED_FEATURE_VERSION)
        context = 2 * hidden + state
        return {
            "candidate_in.weight": (hidden, candidate),
            "candidate_in.bias": (hidden,),
            "state_in.weight": (hidden, state),
            "candidate_hidden.weight": (hidden, hidden),
            "candidate_hidden.bias": (hidden,),
            "score_candidate.weight": (hidden, hidden),
            "score_candidate.bias": (hidden,),
            "score_context.weight": (hidden, context),
            "score_out.weight": (1, hidden),
            "value_context.weight": (hidden, context),
            "value_context.bias": (hidden,),
            "value_out.weight": (1, hidden),
            "value_out.bias": (1,),
        }

    @property
    def knows_prices(self) -> bool:
        """Whether it reads the features of `heterps/PricedStagePlacement-v0`."""
        return len(self.compiled.candidate_in) == feature_sizes(with_prices=True)[0]

    @property
    def feature_version(self) -> int:
        """Of the features that it reads."""
        return PRICED_FEATURE_VERSION if self.knows_prices else FEATURE_VERSION

    def log_probabilities(
        self, candidates: Floats, state: Floats, row: NDArray[np.int64]
    ) -> Floats:
        """Log-probability of every allowed candidate among those of its row.

        Args:
            candidates: (N, features) allowed candidates, those of a row together; see
                `heterps_envs.environments.stage.state.feature_sizes`.
            state: (B, features).
            row: (N,) row of each candidate, ascending; every row has at least one.

        Returns:
            (N,) float32.
        """
        assert (candidates.shape[1], state.shape[1]) == feature_sizes(self.knows_prices)
        out = np.empty(len(row), np.float32)
        contiguous = np.ascontiguousarray(candidates), np.ascontiguousarray(state)
        score(self.compiled, *contiguous, row, out)
        return out

    def values(self, candidates: Floats, state: Floats, row: NDArray[np.int64]) -> Floats:
        """(B,) values of states; arguments as for `log_probabilities`."""
        starts = np.flatnonzero(np.diff(row, prepend=-1))
        hidden = self._linear("candidate_in", candidates) + self._linear("state_in", state)[row]
        hidden = np.maximum(self._linear("candidate_hidden", np.maximum(hidden, 0)), 0)
        count = np.diff(starts, append=len(row)).astype(np.float32)
        mean = np.add.reduceat(hidden, starts, axis=0) / count[:, None]
        largest = np.maximum.reduceat(hidden, starts, axis=0)
        context = np.concatenate([mean, largest, state], axis=1)
        value = np.maximum(self._linear("value_context", context), 0)
        return self._linear("value_out", value)[:, 0]
