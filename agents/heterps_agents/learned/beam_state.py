"""The arrays of a beam: partial placements, what led to them, and the candidates of a level."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_envs.arrays import Floats, Integers
from heterps_envs.environments.stage.packed import StageProblems
from heterps_envs.environments.stage.state import (
    Scratch,
    StageRows,
    StageView,
    empty_view,
    feature_sizes,
    new_scratch,
    num_actions,
)


class Nodes(NamedTuple):
    """Stages of all partial placements, each with the one behind it.

    Attributes:
        behind: (K,) node of the stage behind; -1 for the last stage.
        first_layer, device_class, replicas: (K,) of the stage.
    """

    behind: NDArray[np.int32]
    first_layer: NDArray[np.int32]
    device_class: NDArray[np.int32]
    replicas: NDArray[np.int32]


class Candidates(NamedTuple):
    """Candidates of one level that a policy is to score, those of a partial placement together.

    Attributes:
        features: (N, features of a candidate), see
        `heterps_envs.environments.stage.state.feature_sizes`.
        row: (N,) which of the partial placements that have candidates.
        state: (B, features of the state) of these.
        parent: (N,) row in `StageRows`.
        action: (N,) see `heterps_envs.environments.stage.state`.
        first_layer: (N,) of the stage; -1 where the candidate may not stay in the beam.
        replicas: (N,) of the stage.
        fill_s, behind_s: (N,) with the stage appended.
    """

    features: NDArray[np.float32]
    row: Integers
    state: NDArray[np.float32]
    parent: Integers
    action: Integers
    first_layer: Integers
    replicas: Integers
    fill_s: Floats
    behind_s: Floats


class Beams(NamedTuple):
    """G beams, their rows at this level.

    Attributes:
        group: (R,) beam of each row, ascending.
        score: (R,) sum of log-probabilities.
        node: (R,) of the front stage; -1 before the first one.
        limit_s: (G,) step time that a placement must beat to be of use.
        found_s: (G, K) of the best complete placements, the best first; inf where there is none.
            Times their price per hour in beams with a price limit.
        found_node: (G, K) of their front stages.
    """

    group: Integers
    score: Floats
    node: Integers
    limit_s: Floats
    found_s: Floats
    found_node: Integers


class Level(NamedTuple):
    """The partial placements of a level, and the beams that they belong to."""

    rows: StageRows
    beams: Beams


class Terms(NamedTuple):
    """What all levels of a search have in common.

    Attributes:
        problems: N problems.
        delay_s: (N, L + 1, C) from `heterps_agents.learned.beam_kernels.front_delays`.
        width: Partial placements kept for each beam.
        slack: See `heterps_agents.learned.beam.beam`.
    """

    problems: StageProblems
    delay_s: Floats
    width: int
    slack: float


class Room(NamedTuple):
    """Arrays that all levels share.

    Attributes:
        seen: What one partial placement sees.
        scratch: For that.
        candidates: Of this level.
        nodes: Of all levels; the first G are the front stages of the best placements.
        keys: (W,) scratch.
    """

    seen: StageView
    scratch: Scratch
    candidates: Candidates
    nodes: Nodes
    keys: Integers


def room_for(
    groups: int,
    width: int,
    max_layers: int,
    max_classes: int,
    most_found: int,
    with_prices: bool = False,
) -> Room:
    """Room for `groups` beams of a width."""
    candidate_features, state_features = feature_sizes(with_prices)
    most = groups * width
    size = most * num_actions(max_classes)
    # A level is one stage, and every stage has a layer of its own.
    nodes = groups * most_found + most * max_layers
    return Room(
        empty_view(1, max_classes, with_prices=with_prices),
        new_scratch(max_classes),
        Candidates(
            features=np.empty((size, candidate_features), np.float32),
            row=np.empty(size, np.int64),
            state=np.empty((most, state_features), np.float32),
            parent=np.empty(size, np.int64),
            action=np.empty(size, np.int64),
            first_layer=np.empty(size, np.int64),
            replicas=np.empty(size, np.int64),
            fill_s=np.empty(size),
            behind_s=np.empty(size),
        ),
        Nodes(*(np.empty(nodes, np.int32) for _ in Nodes._fields)),
        np.empty(width, np.int64),
    )
