"""A trained placement policy: weights in one .npz file, inference in NumPy, without torch or SB3.

from heterps_agents.learned.policy import Policy
policy = Policy.load("generalist")
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heterps_agents.learned.policy_file import (
    check_feature_version,
    read_policy_file,
    write_policy_file,
)
from heterps_agents.learned.policy_kernels import ScorerWeights, score
from heterps_configs.errors import HeterpsError
from heterps_envs.environments.stage.state import (
    FEATURE_VERSION,
    PRICED_FEATURE_VERSION,
    feature_sizes,
)

Floats = NDArray[np.float32]


class Policy:
    """The network of `heterps_agents.training.network.CandidateScorer` as NumPy arrays.

    Attributes:
        weights: Parameters by torch's names: `layer.weight` (out, in), `layer.bias` (out,).
        meta: Plain data: feature version, training config, seed, command, scores.
        compiled: The weights that compiled searches read.
    """

    def __init__(self, weights: Mapping[str, NDArray[Any]], meta: Mapping[str, Any]) -> None:
        self.weights = {
            name: np.ascontiguousarray(value, np.float32) for name, value in weights.items()
        }
        self.meta = dict(meta)
        self._transposed = {
            name.removesuffix(".weight"): np.ascontiguousarray(value.T)
            for name, value in self.weights.items()
            if name.endswith(".weight")
        }
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

    @property
    def hidden(self) -> int:
        """Width of the network."""
        return int(self.weights["candidate_hidden.weight"].shape[0])

    @property
    def knows_prices(self) -> bool:
        """Whether it reads the features of `heterps/PricedStagePlacement-v0`."""
        return len(self.compiled.candidate_in) == feature_sizes(with_prices=True)[0]

    @property
    def feature_version(self) -> int:
        """Of the features that it reads."""
        return PRICED_FEATURE_VERSION if self.knows_prices else FEATURE_VERSION

    @property
    def num_parameters(self) -> int:
        """How many numbers were learned."""
        return sum(value.size for value in self.weights.values())

    @classmethod
    def load(cls, reference: str | os.PathLike[str]) -> Policy:
        """Reads a policy.

        Args:
            reference: Path of a .npz file, or a name that `heterps_configs.library.find` knows.

        Raises:
            HeterpsError: Nothing of that name, not a policy, or one for other features.
        """
        weights, meta = read_policy_file(reference)
        if meta.get("problems") == "graphs":
            raise HeterpsError(f"{os.fspath(reference)}: places graphs, not chains of layers")
        check_feature_version(reference, meta, FEATURE_VERSION, PRICED_FEATURE_VERSION)
        return cls(weights, meta)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the policy in one move.

        Raises:
            HeterpsError: The file cannot be written.
        """
        meta = {**self.meta, "feature_version": self.feature_version}
        write_policy_file(path, self.weights, meta)

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

    def _linear(self, layer: str, values: Floats) -> Floats:
        out = values @ self._transposed[layer]
        bias = self.weights.get(f"{layer}.bias")
        return np.asarray(out if bias is None else out + bias, np.float32)
