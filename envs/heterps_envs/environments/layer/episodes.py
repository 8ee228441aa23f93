"""Episodes of layer placement, many at once: what both environments share."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from heterps_envs.arrays import Floats, Integers
from heterps_envs.environments.layer.kernels import advance_layers, observe_layers
from heterps_envs.environments.layer.pool import LayerPool
from heterps_envs.environments.layer.state import (
    FITS,
    LAYER_CANDIDATE_FEATURES,
    LAYER_STATE_FEATURES,
    PLACING,
    STUCK,
    VERDICTS,
    empty_layer_rows,
    empty_layer_view,
    start_layer_rows,
)


def layer_observation_size(num_actions: int) -> int:
    """Numbers in one observation: the features of all candidates, then those of the state."""
    return num_actions * LAYER_CANDIDATE_FEATURES + LAYER_STATE_FEATURES


class LayerEpisodes:
    """`count` episodes on problems of a pool. Rows are independent of each other."""

    def __init__(self, pool: LayerPool, count: int) -> None:
        self.pool, self.count, self.num_actions = pool, count, pool.num_actions
        max_layers = pool.problems.chains.output_bytes.shape[1]
        self.rows = empty_layer_rows(count, max_layers, pool.max_classes)
        self.view = empty_layer_view(count, self.num_actions)
        self._everyone = np.arange(count)

    def begin(self, which: Integers, problem: Integers, floor_s: Floats) -> None:
        """Starts episodes."""
        start_layer_rows(self.rows, which, problem, floor_s)
        observe_layers(self.pool.problems, self.rows, self.view, which)

    def step(self, actions: Integers) -> Integers:
        """Gives one layer of every episode its class; returns the rows that ended.

        Among them are those for whose first layer there is no class: no step could end them.
        """
        placing = self._everyone[self.rows.status == PLACING]
        advance_layers(self.pool.problems, self.rows, self.view, actions)
        observe_layers(self.pool.problems, self.rows, self.view, placing)
        return np.flatnonzero(self.rows.status != PLACING)

    def observations(self) -> NDArray[np.float32]:
        """(count, layer_observation_size) float32, within plus or minus LARGEST_RATIO."""
        flat = self.view.candidates.reshape(self.count, -1)
        return np.concatenate([flat, self.view.state], axis=1)

    def last_observations(self, ended: Integers) -> NDArray[np.float32]:
        """(K, layer_observation_size) of finished episodes: no candidates, only the state."""
        out = np.zeros((len(ended), layer_observation_size(self.num_actions)), np.float32)
        out[:, -LAYER_STATE_FEATURES:] = self.view.state[ended]
        return out

    def describe(self, row: int) -> dict[str, object]:
        """What a finished episode tells: its verdict, and the placement if all layers have one."""
        rows, status = self.rows, int(self.rows.status[row])
        told: dict[str, object] = {
            "problem": int(rows.problem[row]),
            "verdict": VERDICTS[status],
        }
        if status != STUCK:
            layers = self.pool.problems.chains.num_layers[rows.problem[row]]
            told["step_time_s"] = float(rows.step_time_s[row])
            told["price_usd_per_hour"] = float(rows.price_usd_per_hour[row])
            told["code"] = rows.code[row, :layers].copy()
        return told

    def has_fitted(self, which: Integers) -> NDArray[np.bool_]:
        """(K,) which placements can be used."""
        return np.asarray(self.rows.status[which] == FITS)
