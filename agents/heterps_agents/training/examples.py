"""Decisions that lead to the best known placements, as examples to imitate.

An exact optimum says more than a reward: replayed as an episode, it tells at every decision which
stage to take. The expert is affordable on small problems only, and it never shows states that it
does not reach itself (Ross and Bagnell, 2010); those PPO visits. Where an optimum's stage is not
among the candidates, its example ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_envs.arrays import Integers
from heterps_envs.closed_form.placement import decode
from heterps_envs.compiled import checked
from heterps_envs.environments.base.state import RUNNING, STUCK
from heterps_envs.environments.stage.episodes import StageEpisodes
from heterps_envs.environments.stage.pool import ROUNDING, ProblemPool, log_uniform
from heterps_envs.environments.stage.state import Limits, option_of

_UNKNOWN = -1
# A candidate whose number of replicas is further from the optimum's, as a ratio, is another stage.
NEAR_REPLICAS = 1.3
# Limits of the episodes, over what the placement takes, log-uniform; closer than those of PPO's
# episodes, because the last rounds of a search ask so; how often there is no fill limit.
LEAST_EXCESS, MOST_EXCESS = 1e-4, 0.06
# How often the target is the placement's own bottleneck.
TIGHT_SHARE = 0.3
LEAST_LATE, MOST_LATE, UNLIMITED_SHARE = 1e-4, 0.03, 0.2


class Examples(NamedTuple):
    """M decisions.

    Attributes:
        observations: (M, observation size) float32.
        actions: (M,) what the best known placement takes.
    """

    observations: NDArray[np.float32]
    actions: Integers


class OptimalPlacements:
    """The best known placements of a pool's problems.

    Args:
        count: Problems of the pool.
        layers: Most layers of a problem.

    Attributes:
        first_layer: (N, L) of the stage that holds each layer; -1 where no placement is known.
        device_class: (N, L) its class.
        replicas: (N, L) its replicas.
        is_proven: (N,) which placements are optima.
    """

    def __init__(self, count: int, layers: int) -> None:
        self.first_layer = np.full((count, layers), _UNKNOWN, np.int32)
        self.device_class, self.replicas = np.zeros((2, count, layers), np.int32)
        self.is_proven = np.zeros(count, np.bool_)

    def put(self, row: int, code: NDArray[np.int32] | None, is_proven: bool = True) -> None:
        """Takes over the placement of a problem; None: it is not known."""
        self.first_layer[row] = _UNKNOWN
        self.is_proven[row] = is_proven and code is not None
        for stage in [] if code is None else decode(code):
            layers = slice(stage.first_layer, stage.last_layer + 1)
            self.first_layer[row, layers] = stage.first_layer
            self.device_class[row, layers] = stage.device_class
            self.replicas[row, layers] = stage.replicas

    def examples(self, pool: ProblemPool, rng: np.random.Generator, count: int) -> Examples:
        """Replays the placements of random problems.

        Args:
            pool: The problems.
            rng: Of problems and limits.
            count: Problems.
        """
        known = np.flatnonzero(self.is_known)
        if len(known) == 0:
            return Examples(np.zeros((0, 0), np.float32), np.zeros(0, np.int64))
        problem, everyone = rng.choice(known, count), np.arange(count)
        episodes = StageEpisodes(pool, count)
        episodes.begin(everyone, problem, _limits(pool, problem, rng))
        actions, observations, taken = np.zeros(count, np.int64), [], []
        while (episodes.rows.status == RUNNING).any():
            _match(
                episodes.rows, episodes.view, self.first_layer, self.device_class, self.replicas,
                actions,
            )  # fmt: skip
            following = actions != _UNKNOWN
            observations.append(_observations(episodes, following))
            taken.append(actions[following])
            episodes.rows.status[~following & (episodes.rows.status == RUNNING)] = STUCK
            episodes.step(actions)
        return Examples(np.concatenate(observations), np.concatenate(taken))

    def state(self) -> dict[str, NDArray[Any]]:
        """Copies of all arrays by name."""
        return {name: value.copy() for name, value in self._arrays().items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes over the arrays of another one of the same size."""
        for name, value in self._arrays().items():
            value[:] = state[name]

    @property
    def is_known(self) -> NDArray[np.bool_]:
        """(N,) of which problems there is a placement."""
        return np.asarray(self.first_layer[:, 0] != _UNKNOWN)

    def _arrays(self) -> dict[str, NDArray[Any]]:
        names = ("first_layer", "device_class", "replicas", "is_proven")
        return {name: getattr(self, name) for name in names}


def _limits(pool: ProblemPool, problem: Integers, rng: np.random.Generator) -> Limits:
    """Limits that the best known placements keep, hardly."""
    count, step_time_s = len(problem), pool.step_time_s[problem]
    bottleneck_s = pool.bottleneck_s[problem]
    excess = log_uniform(rng, LEAST_EXCESS, MOST_EXCESS, count)
    excess[rng.random(count) < TIGHT_SHARE] = 0.0
    least_s = pool.problems.least_target_s[problem]
    target_s = np.maximum(bottleneck_s * (1 + excess), least_s) * (1 + ROUNDING)
    late = log_uniform(rng, LEAST_LATE, MOST_LATE, count)
    fill_s = (step_time_s * (1 + late) - bottleneck_s) * (1 + ROUNDING)
    fill_s[rng.random(count) < UNLIMITED_SHARE] = np.inf
    return Limits(target_s, fill_s, np.full(count, np.inf))


@checked
def _match(
    rows: Any, view: Any, first_layer: Any, device_class: Any, replicas: Any, actions: Any
) -> None:
    """Writes the candidate of each running episode that the best placement takes next; or -1.

    Of a class with many devices not every number of replicas is a candidate: then the nearest one
    counts that covers the same layers, if it is near enough.
    """
    for row in range(len(actions)):
        actions[row] = _UNKNOWN
        problem, layer = rows.problem[row], rows.position[row] - 1
        if rows.status[row] != RUNNING:
            continue
        wanted, furthest = float(replicas[problem, layer]), NEAR_REPLICAS
        for action in range(view.allowed.shape[1]):
            if (
                view.allowed[row, action]
                and view.first_layer[row, action] == first_layer[problem, layer]
                and option_of(action, rows.used.shape[1]) == device_class[problem, layer]
            ):
                count = float(view.replicas[row, action])
                apart = max(count / wanted, wanted / count)
                if apart < furthest:
                    actions[row], furthest = action, apart


def _observations(episodes: StageEpisodes, which: NDArray[np.bool_]) -> NDArray[np.float32]:
    view, rows = episodes.view, np.flatnonzero(which)
    candidates = view.candidates.reshape(len(view.candidates), -1)[rows]
    return np.concatenate([candidates, view.state[rows]], axis=1)
