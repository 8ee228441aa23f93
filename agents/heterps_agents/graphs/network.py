"""The network for graphs in torch, for training. Inference without torch is `policy`.

Nodes hear from their producers and consumers in a few rounds of message passing (Gilmer et al.,
2017), once per graph. A small scorer then judges every device for the node whose turn it is.
Devices see each other through the mean and maximum over all of them (Zaheer et al., Deep Sets,
2017), so nothing depends on how many nodes, edges or devices there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from heterps_agents.graphs.policy import GraphPolicy
from heterps_envs.environments.graph.state import (
    GRAPH_CANDIDATE_FEATURES,
    GRAPH_NODE_FEATURES,
    GRAPH_STATE_FEATURES,
)

FORBIDDEN_LOGIT = -1e8
# The first policy is nearly uniform: it explores.
_FIRST_SCORES = 0.1


class GraphBatch(NamedTuple):
    """The nodes and edges of some graphs, one after another.

    Attributes:
        node_features: (M, GRAPH_NODE_FEATURES) float32.
        producer: (E,) int64 row of the node at the start of each edge.
        consumer: (E,) int64 row of the node at its end.
    """

    node_features: Tensor
    producer: Tensor
    consumer: Tensor


class GraphScorer(nn.Module):
    """Logits of all devices.

    Args:
        hidden: Width of the layers that score devices.
        node_width: Width of the message passing.
        message_rounds: How often nodes hear from their neighbours.
    """

    def __init__(self, hidden: int = 64, node_width: int = 32, message_rounds: int = 2) -> None:
        super().__init__()
        self.message_rounds = message_rounds
        context = 2 * hidden + GRAPH_STATE_FEATURES
        self.node_in = nn.Linear(GRAPH_NODE_FEATURES, node_width)
        for index in range(message_rounds):
            self.add_module(f"node_self_{index}", nn.Linear(node_width, node_width))
            for side in ("producers", "consumers"):
                layer = nn.Linear(node_width, node_width, bias=False)
                self.add_module(f"node_{side}_{index}", layer)
        self.candidate_in = nn.Linear(GRAPH_CANDIDATE_FEATURES, hidden)
        self.state_in = nn.Linear(GRAPH_STATE_FEATURES, hidden, bias=False)
        self.embedding_in = nn.Linear(node_width, hidden, bias=False)
        self.candidate_hidden = nn.Linear(hidden, hidden)
        self.score_candidate = nn.Linear(hidden, hidden)
        self.score_context = nn.Linear(context, hidden, bias=False)
        self.score_embedding = nn.Linear(node_width, hidden, bias=False)
        self.score_out = nn.Linear(hidden, 1, bias=False)
        with torch.no_grad():
            self.score_out.weight *= _FIRST_SCORES

    def embeddings(self, graphs: GraphBatch) -> Tensor:
        """What the message passing says of each node: (M, node_width)."""
        nodes = torch.relu(self.node_in(graphs.node_features))
        incoming = _per_node(graphs.consumer, len(nodes))
        outgoing = _per_node(graphs.producer, len(nodes))
        for index in range(self.message_rounds):
            from_producers = _mean(nodes[graphs.producer], graphs.consumer, incoming)
            from_consumers = _mean(nodes[graphs.consumer], graphs.producer, outgoing)
            heard = (
                self._layer("self", index, nodes)
                + self._layer("producers", index, from_producers)
                + self._layer("consumers", index, from_consumers)
            )
            nodes = nodes + torch.relu(heard)
        return nodes

    def forward(
        self, candidates: Tensor, state: Tensor, allowed: Tensor, embedding: Tensor
    ) -> Tensor:
        """Scores devices.

        Args:
            candidates: (B, D, GRAPH_CANDIDATE_FEATURES).
            state: (B, GRAPH_STATE_FEATURES).
            allowed: (B, D) bool; at least one device of each row.
            embedding: (B, node_width) of the nodes whose turn it is.

        Returns:
            Log-probabilities (B, D), about `FORBIDDEN_LOGIT` where not allowed.
        """
        shared = self.state_in(state) + self.embedding_in(embedding)
        hidden = torch.relu(self.candidate_in(candidates) + shared[:, None])
        hidden = torch.relu(self.candidate_hidden(hidden))
        present = allowed[:, :, None].to(hidden.dtype)
        mean = (hidden * present).sum(1) / present.sum(1)
        largest = (hidden * present).max(1).values  # after relu, absent ones may count as zero
        context = torch.cat([mean, largest, state], dim=1)
        shared = self.score_context(context) + self.score_embedding(embedding)
        scored = torch.relu(self.score_candidate(hidden) + shared[:, None])
        logits = self.score_out(scored).squeeze(2).masked_fill(~allowed, FORBIDDEN_LOGIT)
        return torch.log_softmax(logits, dim=1)

    def exported(self, meta: Mapping[str, Any]) -> GraphPolicy:
        """A copy of the weights for inference in NumPy."""
        state = self.state_dict()
        return GraphPolicy({name: value.numpy().copy() for name, value in state.items()}, meta)

    def imported(self, policy: GraphPolicy) -> None:
        """Takes over the weights of a policy of the same shape."""
        self.load_state_dict(
            {name: torch.from_numpy(value) for name, value in policy.weights.items()}
        )

    def _layer(self, side: str, index: int, values: Tensor) -> Tensor:
        out: Tensor = self.get_submodule(f"node_{side}_{index}")(values)
        return out


def _per_node(ends: Tensor, count: int) -> Tensor:
    """(count, 1) edges at each node, at least 1."""
    return torch.bincount(ends, minlength=count).clamp(min=1)[:, None].float()


def _mean(messages: Tensor, ends: Tensor, edges: Tensor) -> Tensor:
    """Mean message at each node; zeros where none arrives."""
    total = torch.zeros(len(edges), messages.shape[1]).index_add(0, ends, messages)
    return total / edges
