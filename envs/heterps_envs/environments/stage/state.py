"""The stage-by-stage decision process: what it is, its states and its candidates, as arrays.

A placement is built from the last stage to the first. Let `fill_s` be the seconds that the stages
built so far add to the fill of the pipeline (`sum of C_j + 2 X_j`, see
`heterps_envs.closed_form.formula`). The step time of a finished placement is

    fill_s of all stages + max over s of (max(busy_s, link_s) - fill_s of s and what is behind it)

so a *target* for the second term, the bottleneck, bounds each stage as soon as it is built, and a
*fill limit* bounds the first term: what is built plus the rest on its fastest classes. A *price
limit* bounds the price per hour of all devices used: that is a budget, and where price times step
time counts, what a known placement leaves to better ones. A stage of a class with k replicas grows
to the front as far as target, fill limit, memory and the link to some stage in front of it allow.
Since 1F1B counts micro-batches in flight by the devices behind, memory is exact.
Candidates are numbered `class * NUM_RUNGS + rung of the number of replicas`: every number up to
eight free devices; of more, numbers that grow by a factor, each lowered to the least that reaches
as far, and the last one is all that are free. Where a class has several stage options
(`heterps_envs.options`), the option stands for the class, and what is one device of a class is the
group of devices that a replica of the option takes. After those come as many more: the same stages,
but stopped at an earlier cut, where there is one that makes the fill shorter. (A slow class, or an
expensive cut, delays all that is in front.)
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_envs.compiled import checked, compiled, inlined
from heterps_envs.environments.base.state import RUNNING

# Numbers of replicas of an option that one decision offers.
NUM_RUNGS = 8
# The longest stage that is allowed, and the one with the least fill.
NUM_CUTS = 2
# Raise when any feature changes its meaning: policies carry the version that they were trained on.
FEATURE_VERSION = 7
NUM_CANDIDATE_FEATURES, NUM_GLOBAL_FEATURES = 33, 13
# What policies that know prices see after those, and their version.
PRICED_FEATURE_VERSION = 8
NUM_PRICED_CANDIDATE_FEATURES = NUM_CANDIDATE_FEATURES + 4
NUM_PRICED_GLOBAL_FEATURES = NUM_GLOBAL_FEATURES + 4


class StageRows(NamedTuple):
    """The states of B episodes; all arrays have B rows.

    Attributes:
        problem: Row of the problem in `StageProblems`.
        target_s: The bottleneck aimed at.
        fill_limit_s: The most that the fill may become; inf for no limit.
        price_limit_usd_per_hour: The most that all devices used may cost; inf for no limit.
        position: Layers before this one are not placed yet.
        front_class: Option of the front stage; -1 before the first one.
        num_stages, replicas_behind: Stages built, and their replicas.
        fill_s: What the stages add to the fill.
        behind_s: Closed-form step time of the stages built.
        used: (B, C) devices used of each class.
        code: (B, L) int32 of the placement, see `heterps_envs.closed_form.formula`.
        status: RUNNING, COMPLETE, or STUCK: no stage may come next.
    """

    problem: NDArray[np.int64]
    target_s: NDArray[np.float64]
    fill_limit_s: NDArray[np.float64]
    price_limit_usd_per_hour: NDArray[np.float64]
    position: NDArray[np.int64]
    front_class: NDArray[np.int64]
    num_stages: NDArray[np.int64]
    replicas_behind: NDArray[np.int64]
    fill_s: NDArray[np.float64]
    behind_s: NDArray[np.float64]
    used: NDArray[np.int64]
    code: NDArray[np.int32]
    status: NDArray[np.int8]


class Limits(NamedTuple):
    """What K episodes must keep, see above.

    Attributes:
        target_s: (K,) the bottleneck aimed at.
        fill_limit_s: (K,) inf for no limit.
        price_limit_usd_per_hour: (K,) inf for no limit.
    """

    target_s: NDArray[np.float64]
    fill_limit_s: NDArray[np.float64]
    price_limit_usd_per_hour: NDArray[np.float64]


class StageView(NamedTuple):
    """What `observe` writes: A = `num_actions(T)` candidates for the next stage of B episodes.

    Attributes:
        candidates: (B, A, NUM_CANDIDATE_FEATURES), zero where the candidate is not allowed; or
            NUM_PRICED_CANDIDATE_FEATURES.
        state: (B, NUM_GLOBAL_FEATURES) or NUM_PRICED_GLOBAL_FEATURES.
        allowed: (B, A).
        first_layer: (B, A) how far the stage grows.
        replicas: (B, A) of the stage.
        fill_s, behind_s: (B, A) those of `StageRows` with the stage appended.
    """

    candidates: NDArray[np.float32]
    state: NDArray[np.float32]
    allowed: NDArray[np.bool_]
    first_layer: NDArray[np.int64]
    replicas: NDArray[np.int64]
    fill_s: NDArray[np.float64]
    behind_s: NDArray[np.float64]


def num_actions(max_classes: int) -> int:
    """Candidates of one decision: device class times rung of replicas times cut."""
    return max_classes * NUM_RUNGS * NUM_CUTS


class Scratch(NamedTuple):
    """Room that the kernels of one decision share.

    Attributes:
        fronts: (C, 3) see `heterps_envs.environments.stage.growth.list_fronts`.
        front: (3,) what `heterps_envs.environments.stage.growth.best_front_link` returns.
    """

    fronts: NDArray[np.int64]
    front: NDArray[np.float64]


@checked
def new_scratch(max_classes: int) -> Scratch:
    """Scratch for problems of at most so many classes."""
    return Scratch(np.empty((max_classes, 3), np.int64), np.empty(3))


@compiled(error_model="numpy", inline="always")
def option_of(action: int, max_classes: int) -> int:
    """Device class (or option) of a candidate."""
    return action % (max_classes * NUM_RUNGS) // NUM_RUNGS


@inlined
def rung_of(most: int, rung: int, below: int) -> int:
    """Replicas of a rung, 0 to NUM_RUNGS - 1; more than `most` where there are no more rungs.

    Args:
        most: Replicas that may be taken.
        rung: Which.
        below: Those of the rung before; 0 for the first.
    """
    if most <= NUM_RUNGS:
        return rung + 1
    grown = int(most ** (rung / (NUM_RUNGS - 1.0)) + 0.5)
    return most if rung == NUM_RUNGS - 1 else max(below + 1, grown)


def empty_rows(count: int, max_layers: int, max_classes: int) -> StageRows:
    """Room for `count` episodes; begin them with `start_rows`."""
    return StageRows(
        problem=np.zeros(count, np.int64),
        target_s=np.zeros(count),
        fill_limit_s=np.full(count, np.inf),
        price_limit_usd_per_hour=np.full(count, np.inf),
        position=np.zeros(count, np.int64),
        front_class=np.full(count, -1),
        num_stages=np.zeros(count, np.int64),
        replicas_behind=np.zeros(count, np.int64),
        fill_s=np.zeros(count),
        behind_s=np.zeros(count),
        used=np.zeros((count, max_classes), np.int64),
        code=np.zeros((count, max_layers), np.int32),
        status=np.zeros(count, np.int8),
    )


def feature_sizes(with_prices: bool) -> tuple[int, int]:
    """Features of a candidate, and of the state."""
    if with_prices:
        return NUM_PRICED_CANDIDATE_FEATURES, NUM_PRICED_GLOBAL_FEATURES
    return NUM_CANDIDATE_FEATURES, NUM_GLOBAL_FEATURES


def empty_view(
    count: int, max_classes: int, with_shorter: bool = True, with_prices: bool = False
) -> StageView:
    """Room for what `count` episodes see.

    Args:
        count: B.
        max_classes: T.
        with_shorter: Also for the stages that stop at an earlier cut; without, half as many.
        with_prices: Room for the features of prices too.
    """
    candidate_features, state_features = feature_sizes(with_prices)
    actions = num_actions(max_classes) // (1 if with_shorter else NUM_CUTS)
    return StageView(
        candidates=np.zeros((count, actions, candidate_features), np.float32),
        state=np.zeros((count, state_features), np.float32),
        allowed=np.zeros((count, actions), np.bool_),
        first_layer=np.zeros((count, actions), np.int64),
        replicas=np.zeros((count, actions), np.int64),
        fill_s=np.zeros((count, actions)),
        behind_s=np.zeros((count, actions)),
    )


def start_rows(
    p: Any,
    rows: StageRows,
    which: Any,
    problem: Any,
    target_s: Any,
    fill_limit_s: Any,
    price_limit_usd_per_hour: Any = np.inf,
) -> None:
    """Begins new episodes in the rows `which`.

    Args:
        p: `StageProblems`.
        rows: Written to.
        which: (K,) row indices.
        problem: (K,) or scalar, rows of the problems.
        target_s: (K,) or scalar.
        fill_limit_s: (K,) or scalar.
        price_limit_usd_per_hour: (K,) or scalar.
    """
    rows.problem[which], rows.target_s[which] = problem, target_s
    rows.fill_limit_s[which] = fill_limit_s
    rows.price_limit_usd_per_hour[which] = price_limit_usd_per_hour
    rows.position[which] = p.num_layers[rows.problem[which]]
    rows.front_class[which] = -1
    for array in (rows.num_stages, rows.replicas_behind, rows.fill_s, rows.behind_s):
        array[which] = 0
    rows.used[which], rows.code[which], rows.status[which] = 0, 0, RUNNING
