"""A trained policy for graphs: weights in one .npz file, inference in NumPy, without torch or SB3.

from heterps_agents.graphs.policy import GraphPolicy
policy = GraphPolicy.load("graph-generalist")
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from heterps_agents.graphs.rollout_kernels import ScorerWeights, mean_messages
from heterps_agents.learned.policy_file import StoredPolicy
from heterps_envs.environments.graph.state import (
    GRAPH_CANDIDATE_FEATURES,
    GRAPH_FEATURE_VERSION,
    GRAPH_NODE_FEATURES,
    GRAPH_STATE_FEATURES,
)

Floats = NDArray[np.float32]
Integers = NDArray[np.int64] | NDArray[np.int32]


class GraphPolicy(StoredPolicy):
    """The network of `heterps_agents.graphs.network.GraphScorer` as NumPy arrays."""

    problems: ClassVar = "graphs"
    wrong_problems: ClassVar = (
        "places chains of layers, not graphs; `heterps train --config graph-generalist` makes a "
        "policy for graphs"
    )
    feature_versions: ClassVar = (GRAPH_FEATURE_VERSION,)

    @property
    def feature_version(self) -> int:
        """Of the features that it reads."""
        return GRAPH_FEATURE_VERSION

    @classmethod
    def shapes(
        cls, hidden: int, feature_version: int, weights: Mapping[str, NDArray[Any]]
    ) -> dict[str, tuple[int, ...]]:
        """See `StoredPolicy.shapes`."""
        width = weights.get("node_in.bias", np.empty(0)).size
        rounds = sum(name.startswith("node_producers_") for name in weights)
        shapes: dict[str, tuple[int, ...]] = {
            "node_in.weight": (width, GRAPH_NODE_FEATURES),
            "node_in.bias": (width,),
            "candidate_in.weight": (hidden, GRAPH_CANDIDATE_FEATURES),
            "candidate_in.bias": (hidden,),
            "state_in.weight": (hidden, GRAPH_STATE_FEATURES),
            "embedding_in.weight": (hidden, width),
            "candidate_hidden.weight": (hidden, hidden),
            "candidate_hidden.bias": (hidden,),
            "score_candidate.weight": (hidden, hidden),
            "score_candidate.bias": (hidden,),
            "score_context.weight": (hidden, 2 * hidden + GRAPH_STATE_FEATURES),
            "score_embedding.weight": (hidden, width),
            "score_out.weight": (1, hidden),
        }
        for index in range(rounds):
            shapes[f"node_self_{index}.bias"] = (width,)
            for part in ("self", "producers", "consumers"):
                shapes[f"node_{part}_{index}.weight"] = (width, width)
        return shapes

    @property
    def node_width(self) -> int:
        """Width of the message passing."""
        return int(self.weights["node_in.weight"].shape[0])

    @property
    def message_rounds(self) -> int:
        """How often nodes hear from their neighbours."""
        return sum(name.startswith("node_producers_") for name in self.weights)

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
