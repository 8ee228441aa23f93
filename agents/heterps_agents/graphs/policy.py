"""A trained policy for graphs: weights in one .npz file, inference in NumPy, without torch or SB3.

from heterps_agents.graphs.policy import GraphPolicy
policy = GraphPolicy.load("graph-generalist")
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heterps_agents.graphs.rollout_kernels import ScorerWeights, mean_messages
from heterps_agents.learned.policy_file import (
    check_feature_version,
    read_policy_file,
    write_policy_file,
)
from heterps_configs.errors import HeterpsError
from heterps_envs.environments.graph.state import GRAPH_FEATURE_VERSION

Floats = NDArray[np.float32]
Integers = NDArray[np.int64] | NDArray[np.int32]
_KIND = "graphs"


class GraphPolicy:
    """The network of `heterps_agents.graphs.network.GraphScorer` as NumPy arrays.

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
        """Width of the layers that score devices."""
        return int(self.weights["candidate_hidden.weight"].shape[0])

    @property
    def node_width(self) -> int:
        """Width of the message passing."""
        return int(self.weights["node_in.weight"].shape[0])

    @property
    def message_rounds(self) -> int:
        """How often nodes hear from their neighbours."""
        return sum(name.startswith("node_producers_") for name in self.weights)

    @property
    def num_parameters(self) -> int:
        """How many numbers were learned."""
        return sum(value.size for value in self.weights.values())

    @classmethod
    def load(cls, reference: str | os.PathLike[str]) -> GraphPolicy:
        """Reads a policy.

        Args:
            reference: Path of a .npz file, or a name that `heterps_configs.library.find` knows.

        Raises:
            HeterpsError: Nothing of that name, not a policy for graphs, or one for other features.
        """
        weights, meta = read_policy_file(reference)
        if meta.get("problems") != _KIND:
            raise HeterpsError(
                f"{os.fspath(reference)}: places chains of layers, not graphs; "
                "`heterps train --config graph-generalist` makes a policy for graphs"
            )
        check_feature_version(reference, meta, GRAPH_FEATURE_VERSION)
        return cls(weights, meta)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the policy in one move.

        Raises:
            HeterpsError: The file cannot be written.
        """
        meta = {**self.meta, "problems": _KIND, "feature_version": GRAPH_FEATURE_VERSION}
        write_policy_file(path, self.weights, meta)

    def embeddings(self, node_features: Floats, producer: Integers, consumer: Integers) -> Floats:
        """What the message passing says of each node of a graph.

        Args:
            node_features: (V, GRAPH_NODE_FEATURES).
            producer: (E,) the node at the start of each edge.
            consumer: (E,) the node at its end.

        Returns:
            (V, node_width) float32.
        """
        nodes = np.maximum(self._linear("node_in", node_features), 0)
        for index in range(self.message_rounds):
            heard = self._linear(f"node_self_{index}", nodes)
            heard += self._linear(
                f"node_producers_{index}", mean_messages(nodes, consumer, producer)
            )
            heard += self._linear(
                f"node_consumers_{index}", mean_messages(nodes, producer, consumer)
            )
            nodes = nodes + np.maximum(heard, 0)
        return nodes

    def node_terms(self, embeddings: Floats) -> tuple[Floats, Floats]:
        """What nodes add to the first layer and to the scoring layer: (V, hidden) each."""
        first = self._linear("embedding_in", embeddings) + self.weights["candidate_in.bias"]
        scored = self._linear("score_embedding", embeddings) + self.weights["score_candidate.bias"]
        return first, scored

    def log_probabilities(
        self, candidates: Floats, state: Floats, allowed: NDArray[np.bool_], embedding: Floats
    ) -> Floats:
        """Log-probability of every device; -inf where it is not allowed.

        Args:
            candidates: (B, D, GRAPH_CANDIDATE_FEATURES).
            state: (B, GRAPH_STATE_FEATURES).
            allowed: (B, D); at least one device of each row.
            embedding: (B, node_width) of the nodes whose turn it is.

        Returns:
            (B, D) float32.
        """
        first, last = self.node_terms(embedding)
        shared = first + self._product("state_in", state)
        hidden = np.maximum(self._product("candidate_in", candidates) + shared[:, None], 0)
        hidden = np.maximum(self._linear("candidate_hidden", hidden), 0)
        present = allowed[:, :, None]
        mean = np.where(present, hidden, 0).sum(axis=1) / present.sum(axis=1)
        largest = np.where(present, hidden, 0).max(axis=1)
        context = np.concatenate([mean, largest, state], axis=1).astype(np.float32)
        shared = last + self._product("score_context", context)
        scored = np.maximum(self._product("score_candidate", hidden) + shared[:, None], 0)
        logits = np.where(allowed, self._product("score_out", scored)[:, :, 0], -np.inf)
        logits = logits - logits.max(axis=1, keepdims=True)
        return np.asarray(logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)), np.float32)

    def scorer_weights(self) -> ScorerWeights:
        """The layers that score devices, for compiled rollouts."""
        return ScorerWeights(
            candidate_in=self._transposed["candidate_in"],
            state_in=self._transposed["state_in"],
            candidate_hidden=self._transposed["candidate_hidden"],
            candidate_hidden_bias=self.weights["candidate_hidden.bias"],
            score_candidate=self._transposed["score_candidate"],
            score_context=self._transposed["score_context"],
            score_out=self.weights["score_out.weight"][0],
        )

    def _product(self, layer: str, values: Floats) -> Floats:
        return np.asarray(values @ self._transposed[layer], np.float32)

    def _linear(self, layer: str, values: Floats) -> Floats:
        out = self._product(layer, values)
        bias = self.weights.get(f"{layer}.bias")
        return out if bias is None else out + bias
