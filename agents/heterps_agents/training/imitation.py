"""Supervised steps before PPO: the network learns decisions of optima."""

from __future__ import annotations

import numpy as np
import torch

from heterps_agents.training.examples import Examples
from heterps_agents.training.network import StagePolicy

LARGEST_GRADIENT = 0.5


def imitate(
    network: StagePolicy, examples: Examples, minibatch_size: int, rng: np.random.Generator
) -> float:
    """One pass over the examples with the network's own optimizer.

    Args:
        network: Changed.
        examples: M decisions.
        minibatch_size: Of one gradient.
        rng: Orders the examples.

    Returns:
        Mean cross entropy; nan without examples.
    """
    count, total = len(examples.actions), 0.0
    if count == 0:
        return float("nan")
    observations, actions = map(torch.from_numpy, examples)
    for rows in np.array_split(rng.permutation(count), -(-count // minibatch_size)):
        logits, _ = network.scorer(observations[rows])
        loss = torch.nn.functional.cross_entropy(logits, actions[rows])
        network.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(network.scorer.parameters(), LARGEST_GRADIENT)
        network.optimizer.step()
        total += loss.item() * len(rows)
    return total / count
