"""The layer-by-layer decision process: what it is, its states and its candidates, as arrays.

HeterPS's own sequence of decisions (Liu et al., FGCS 148, 2023): from the first layer to the last,
each layer gets a device class. Consecutive layers of one class form a stage. When all layers have a
class, the stages get their replicas (`heterps_envs.environments.layer.provisioning`).

A class is allowed for a layer if the layer can go on with the stage of the layer before it, or if
the class has a device left to begin a stage on; and if the stage, with the layer, may fit into the
memory of one device. With cuts, a stage may also end where the class goes on: there are as many
candidates again, which begin another stage of the class of the layer before.

How many micro-batches a stage holds is not known before all stages behind it are, so only the
fewest that it may ever hold are counted here: an allowed action can still end in a placement that
does not fit.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_envs.environments.stage.packed import StageProblems

LAYER_CANDIDATE_FEATURES, LAYER_STATE_FEATURES = 14, 14
# What else may become of an episode, beside `heterps_envs.environments.base.state`.
MISSES_FLOOR, OUT_OF_MEMORY = 3, 4
VERDICTS = ("", "fits", "stuck", "misses the floor", "out of memory")


class LayerProblems(NamedTuple):
    """N problems as the kernels take them.

    Attributes:
        chains: What stage placement takes as well.
        is_price: (1,) whether price per hour times step time is minimised, or the step time.
    """

    chains: StageProblems
    is_price: NDArray[np.bool_]

    @property
    def num_problems(self) -> int:
        """Number of problems, N."""
        return self.chains.num_problems


class LayerRows(NamedTuple):
    """The states of B episodes; all arrays have B rows.

    Attributes:
        problem: Row of the problem in `LayerProblems`.
        floor_s: Longest step time that is allowed; inf without a throughput floor.
        position: The layer that gets its class next.
        num_stages: Stages begun.
        first_layer: Of the stage that layer `position - 1` belongs to.
        kinds: (B, L) class of each layer before `position`, with `CUT_BIT` where a stage ends
            although its class goes on.
        begun: (B, T) stages begun on each class; each needs a device at least.
        seconds: (B, T) compute seconds of one micro-batch in the layers given to each class.
        code: (B, L) int32 of a finished placement, see `heterps_envs.closed_form.formula`.
        step_time_s, price_usd_per_hour: Of a finished placement, also if it does not fit.
        excess: Memory that its devices lack, as shares of a device.
        status: RUNNING, or how the episode ended; COMPLETE: it fits.
    """

    problem: NDArray[np.int64]
    floor_s: NDArray[np.float64]
    position: NDArray[np.int64]
    num_stages: NDArray[np.int64]
    first_layer: NDArray[np.int64]
    kinds: NDArray[np.int32]
    begun: NDArray[np.int64]
    seconds: NDArray[np.float64]
    code: NDArray[np.int32]
    step_time_s: NDArray[np.float64]
    price_usd_per_hour: NDArray[np.float64]
    excess: NDArray[np.float64]
    status: NDArray[np.int8]


class LayerView(NamedTuple):
    """What `observe_layers` writes: the candidates for the next layer of B episodes.

    There are A of them: the T classes and, with cuts, the T classes once more.

    Attributes:
        candidates: (B, A, LAYER_CANDIDATE_FEATURES), zero where the candidate is not allowed.
        state: (B, LAYER_STATE_FEATURES).
        allowed: (B, A).
    """

    candidates: NDArray[np.float32]
    state: NDArray[np.float32]
    allowed: NDArray[np.bool_]


def empty_layer_rows(count: int, max_layers: int, max_classes: int) -> LayerRows:
    """Room for `count` episodes; begin them with `start_layer_rows`."""
    return LayerRows(
        problem=np.zeros(count, np.int64),
        floor_s=np.full(count, np.inf),
        position=np.zeros(count, np.int64),
        num_stages=np.zeros(count, np.int64),
        first_layer=np.zeros(count, np.int64),
        kinds=np.zeros((count, max_layers), np.int32),
        begun=np.zeros((count, max_classes), np.int64),
        seconds=np.zeros((count, max_classes)),
        code=np.zeros((count, max_layers), np.int32),
        step_time_s=np.zeros(count),
        price_usd_per_hour=np.zeros(count),
        excess=np.zeros(count),
        status=np.zeros(count, np.int8),
    )


def empty_layer_view(count: int, num_actions: int) -> LayerView:
    """Room for what `count` episodes see."""
    return LayerView(
        candidates=np.zeros((count, num_actions, LAYER_CANDIDATE_FEATURES), np.float32),
        state=np.zeros((count, LAYER_STATE_FEATURES), np.float32),
        allowed=np.zeros((count, num_actions), np.bool_),
    )


def start_layer_rows(rows: LayerRows, which: Any, problem: Any, floor_s: Any) -> None:
    """Begins new episodes in the rows `which`.

    Args:
        rows: Written to.
        which: (K,) row indices.
        problem: (K,) or scalar, rows of the problems.
        floor_s: (K,) or scalar.
    """
    rows.problem[which], rows.floor_s[which] = problem, floor_s
    for array in rows[2:]:
        array[which] = 0
