"""Beam search over stages: the W most promising partial placements for each target.

Two that cover the same layers with the same devices and the same front class are one state: the one
with the shorter step time behind is kept, which loses nothing (`heterps_agents.exact.solve` uses
the same states). What cannot beat the best placement any more is dropped before it is scored. With
width 1 a beam is greedy decoding.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from heterps_agents.interface.blas_threads import one_blas_thread
from heterps_agents.learned.beam_kernels import (
    expand,
    front_delays,
    run_levels,
    select,
    write_found,
)
from heterps_agents.learned.beam_state import Beams, room_for
from heterps_agents.learned.policy import Policy
from heterps_envs.arrays import Floats
from heterps_envs.environments.stage.packed import StageProblems
from heterps_envs.environments.stage.state import empty_rows, start_rows

# Levels between two looks at the clock.
LEVELS = 8


class Scorer(Protocol):
    """Says which of its candidates a partial placement should take next.

    `heterps_agents.learned.policy.Policy` is one; searches without learning have others.
    """

    def log_probabilities(
        self,
        candidates: NDArray[np.float32],
        state: NDArray[np.float32],
        row: NDArray[np.int64],
    ) -> NDArray[np.float32]:
        """Scores; a beam keeps the largest sums of them.

        Args:
            candidates: (N, NUM_CANDIDATE_FEATURES) allowed candidates, those of a row together.
            state: (B, NUM_GLOBAL_FEATURES).
            row: (N,) row of each candidate, ascending; every row has at least one.

        Returns:
            (N,) float32.
        """
        ...


class BeamResult(NamedTuple):
    """Best placements of each problem: (N, P K), and (N, P K, L) for the code.

    Under a price limit, price per hour times step time stands in place of the step time.
    """

    step_time_s: Floats
    code: NDArray[np.int16]


@one_blas_thread()
def beam(
    scorer: Scorer,
    problems: StageProblems,
    targets: Floats,
    fill_limits_s: Floats,
    width: int,
    known_s: Floats,
    *,
    price_limits: Floats | None = None,
    slack: float = 1.0,
    most_found: int = 1,
    temperature: float = 0.0,
    rng: np.random.Generator | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> BeamResult:
    """One beam for every problem and target, all at once.

    Args:
        scorer: Scores the stages.
        problems: N problems.
        targets: (N, P) seconds.
        fill_limits_s: (N, P) seconds; inf for no limit.
        width: Partial placements kept for each beam.
        known_s: (N,) step times to beat.
        price_limits: (N, P) US dollars per hour that all devices used may cost; None: no limit.
        slack: Placements are also of use where they take up to so many times what is known or
            found: small changes may make them the best. inf: as long as they beat `known_s`.
        most_found: K, placements that a beam hands over.
        temperature: 0 keeps the likeliest; above it, scores get that much Gumbel noise (sampling).
        rng: Of the noise; needed where there is some.
        should_stop: Asked every few levels; what was found until then is returned.
    """
    count, per_problem = targets.shape
    groups, layers = targets.size, problems.output_bytes.shape[1]
    classes = problems.class_price.shape[1]
    delay_s = np.empty((count, layers + 1, classes))
    front_delays(problems, delay_s)
    with_prices = isinstance(scorer, Policy) and scorer.knows_prices
    room = room_for(groups, width, layers, classes, most_found, with_prices)
    problem = np.repeat(np.arange(count), per_problem)
    rows, following = (empty_rows(groups * width, 0, classes) for _ in range(2))
    dollars = np.inf if price_limits is None else price_limits.ravel()
    start_rows(
        problems, rows, np.arange(groups), problem, targets.ravel(), fill_limits_s.ravel(), dollars
    )
    limit_s = np.repeat(known_s if math.isinf(slack) else known_s * slack, per_problem)
    found_s = np.full((groups, most_found), np.inf)
    found_node = np.arange(groups * most_found).reshape(groups, most_found)
    beams, next_beams = (
        Beams(
            np.arange(groups * width), np.zeros(groups * width), np.full(groups * width, -1),
            limit_s, found_s, found_node,
        )
        for _ in range(2)
    )  # fmt: skip
    alive, nodes = groups, groups * most_found
    while alive > 0 and not should_stop():
        if isinstance(scorer, Policy) and temperature == 0:
            alive, nodes = run_levels(
                problems, delay_s, scorer.compiled, rows, following, beams, next_beams, room,
                alive, nodes, width, slack, LEVELS,
            )  # fmt: skip
            continue
        found, parents = expand(problems, delay_s, rows, beams, alive, room, slack)
        if found == 0:
            break
        c = room.candidates
        scores = scorer.log_probabilities(c.features[:found], c.state[:parents], c.row[:found])
        total = beams.score[c.parent[:found]] + scores
        if temperature > 0:
            assert rng is not None
            total = total + temperature * rng.gumbel(size=len(total))
        alive = select(
            problems, delay_s, rows, beams, room, found, total, width, following, next_beams, nodes
        )
        nodes += alive
        rows, following, beams, next_beams = following, rows, next_beams, beams
    code = np.zeros((groups, most_found, layers), np.int16)
    write_found(beams, room.nodes, problems.num_layers[problem], code)
    shape = (count, per_problem * most_found)
    return BeamResult(found_s.reshape(shape), code.reshape(*shape, layers))
