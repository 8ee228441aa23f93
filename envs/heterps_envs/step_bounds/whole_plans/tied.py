"""Layers that use parameters of another layer: a stage without that one has a copy of its own."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from heterps_envs.arrays import Floats, Integers
from heterps_envs.compiled import uncounted
from heterps_envs.options import all_groups
from heterps_envs.problem import Problem


class Tied(NamedTuple):
    """K layers that use parameters of another one, by owner and then by layer.

    Attributes:
        users: (K,) layers.
        owner_of: (K,) whose parameters they use.
        weight_bytes, moment_bytes, gradient_bytes: (K, O) of these parameters.
    """

    users: Integers
    owner_of: Integers
    weight_bytes: Floats
    moment_bytes: Floats
    gradient_bytes: Floats

    @classmethod
    def of(cls, problem: Problem) -> Tied:
        """The layers of a problem, for all kinds of groups."""
        job, groups = problem.job, all_groups(problem)
        pairs = [(w, u) for w, users in sorted(problem.profile.tied_layers.items()) for u in users]
        users = np.array([user for _, user in sorted(pairs)], np.int64)
        whole, trained = np.zeros((2, len(users), len(groups)))
        for column, (degree, _) in enumerate(groups):
            own = problem.at_degree(degree)
            whole[:, column] = np.minimum(own.parameters, own.tied_parameters)[users]
            trained[:, column] = np.minimum(own.trained_parameters, own.tied_parameters)[users]
        return cls(
            users=users,
            owner_of=np.array([owner for owner, _ in sorted(pairs)], np.int64),
            weight_bytes=whole * job.weight_bytes_per_parameter,
            moment_bytes=trained * job.optimizer_bytes_per_parameter,
            gradient_bytes=trained * job.weight_bytes_per_parameter,
        )


@uncounted
def tied_bytes(tied: Any, span: Any, owners: Any, parts: int) -> tuple[float, float]:
    """State and gradients of a stage's copies.

    Args:
        tied: `Tied`.
        span: The option, first layer, and the layer after the last.
        owners: (L,) stages that have a layer, as far as there are any yet.
        parts: Into which optimizer state is divided at most; 0: into as many as there are owners.
    """
    option, first, stop = span
    state, gradients, last = 0.0, 0.0, -1
    for each in range(len(tied.users)):
        owner, user = tied.owner_of[each], tied.users[each]
        # Of several users of the same parameters one has them.
        if owner == last or first <= owner < stop or not first <= user < stop:
            continue
        last = owner
        divided = parts if parts > 0 else owners[user]
        state += tied.weight_bytes[each, option] + tied.moment_bytes[each, option] / divided
        gradients += tied.gradient_bytes[each, option]
    return state, gradients
