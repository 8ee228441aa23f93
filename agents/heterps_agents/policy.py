"""A trained placement policy: weights in one .npz file, inference in NumPy, without torch or SB3.

from heterps_agents.policy import Policy
policy = Policy.load("generalist")
"""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heterps_configs import library
from heterps_configs.errors import HeterpsError
from heterps_configs.yaml_files import write_bytes
from heterps_envs.stage_state import (
    FEATURE_VERSION,
    NUM_CANDIDATE_FEATURES,
    NUM_GLOBAL_FEATURES,
)

Floats = NDArray[np.float32]
_META = "meta"


class Policy:
    """The network of `heterps_agents.network.CandidateScorer` as NumPy arrays.

    Attributes:
        weights: Parameters by torch's names: `layer.weight` (out, in), `layer.bias` (out,).
        meta: Plain data: feature version, training config, seed, command, scores.
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

    @property
    def hidden(self) -> int:
        """Width of the network."""
        return int(self.weights["candidate_hidden.weight"].shape[0])

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
        source = os.fspath(reference)
        content = library.find("policies", reference).read_bytes()
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as archive:
                meta = json.loads(str(archive[_META]))
                weights = {name: archive[name] for name in archive.files if name != _META}
        except (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile):
            raise HeterpsError(f"{source}: is not a policy that `heterps train` wrote") from None
        if meta.get("feature_version") != FEATURE_VERSION:
            raise HeterpsError(
                f"{source}: was trained on features of version {meta.get('feature_version')}; "
                f"this heterps has version {FEATURE_VERSION}: train it again"
            )
        return cls(weights, meta)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the policy in one move.

        Raises:
            HeterpsError: The file cannot be written.
        """
        meta = {**self.meta, "feature_version": FEATURE_VERSION}
        buffer = io.BytesIO()
        arrays: dict[str, Any] = {_META: np.array(json.dumps(meta)), **self.weights}
        np.savez_compressed(buffer, **arrays)
        write_bytes(path, buffer.getvalue())

    def log_probabilities(
        self, candidates: Floats, state: Floats, row: NDArray[np.int64]
    ) -> Floats:
        """Log-probability of every allowed candidate among those of its row.

        Args:
            candidates: (N, NUM_CANDIDATE_FEATURES) allowed candidates, those of a row together.
            state: (B, NUM_GLOBAL_FEATURES).
            row: (N,) row of each candidate, ascending; every row has at least one.

        Returns:
            (N,) float32.
        """
        assert candidates.shape[1] == NUM_CANDIDATE_FEATURES
        assert state.shape[1] == NUM_GLOBAL_FEATURES
        starts = np.flatnonzero(np.diff(row, prepend=-1))
        logits, _ = self._forward(candidates, state, row, starts)
        logits = logits - np.maximum.reduceat(logits, starts)[row]
        total = np.add.reduceat(np.exp(logits), starts)
        return np.asarray(logits - np.log(total)[row], np.float32)

    def values(self, candidates: Floats, state: Floats, row: NDArray[np.int64]) -> Floats:
        """(B,) values of states; arguments as for `log_probabilities`."""
        starts = np.flatnonzero(np.diff(row, prepend=-1))
        _, context = self._forward(candidates, state, row, starts)
        hidden = np.maximum(self._linear("value_context", context), 0)
        return self._linear("value_out", hidden)[:, 0]

    def _forward(
        self, candidates: Floats, state: Floats, row: NDArray[np.int64], starts: NDArray[np.int64]
    ) -> tuple[Floats, Floats]:
        hidden = self._linear("candidate_in", candidates) + self._linear("state_in", state)[row]
        hidden = np.maximum(self._linear("candidate_hidden", np.maximum(hidden, 0)), 0)
        count = np.diff(starts, append=len(row)).astype(np.float32)
        mean = np.add.reduceat(hidden, starts, axis=0) / count[:, None]
        largest = np.maximum.reduceat(hidden, starts, axis=0)
        context = np.concatenate([mean, largest, state], axis=1)
        scored = self._linear("score_candidate", hidden)
        scored += self._linear("score_context", context)[row]
        return self._linear("score_out", np.maximum(scored, 0))[:, 0], context

    def _linear(self, layer: str, values: Floats) -> Floats:
        out = values @ self._transposed[layer]
        bias = self.weights.get(f"{layer}.bias")
        return np.asarray(out if bias is None else out + bias, np.float32)
