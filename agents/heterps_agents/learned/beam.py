"""Beam search over stages: the W most promising partial placements for each target.

Two that cover the same layers with the same devices and the same front option are one state: the
one with the shorter step time behind is kept, which loses nothing (`heterps_agents.exact.solve`
uses the same states). What cannot beat the best placement any more is dropped before it is scored.
With width 1 a beam is greedy decoding.
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
from heterps_agents.learned.beam_state import Beams, Level, Terms, room_for
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


class Aims(NamedTuple):
    """What the beams for N problems aim at, P for each problem.

    Attributes:
        targets_s: (N, P) step times under which bottlenecks stay.
        fill_limits_s: (N, P) inf for no limit.
        known_s: (N,) step times to beat.
        price_limits_usd_per_hour: (N, P) that all devices used may cost; None: no limit.
    """

    targets_s: Floats
    fill_limits_s: Floats
    known_s: Floats
    price_limits_usd_per_hour: Floats | None = None


class Noise(NamedTuple):
    """Gumbel noise of a temperature above 0, which is added to scores: sampling."""

    temperature: float
    rng: np.random.Generator


class BeamResult(NamedTuple):
    """Best placements of each problem: (N, P K), and (N, P K, L) for the code.

    Under a price limit, price per hour times step time stands in place of the step time.
    """

    step_time_s: Floats
    code: NDArray[np.int32]


@one_blas_thread()
def beam(
    scorer: Scorer,
    problems: StageProblems,
    aims: Aims,
    width: int,
    *,
    slack: float = 1.0,
    most_found: int = 1,
    noise: Noise | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> BeamResult:
    """One beam for every problem and target, all at once.

    Args:
        scorer: Scores the stages.
        problems: N problems.
        aims: P for each problem.
        width: Partial placements kept for each beam.
        slack: Placements are also of use where they take up to so many times what is known or
            found: small changes may make them the best. inf: as long as they beat what is known.
        most_found: K, placements that a beam hands over.
        noise: Without it the likeliest are kept.
        should_stop: Asked every few levels; what was found until then is returned.
    """
    count, per_problem = aims.targets_s.shape
    groups, layers = aims.targets_s.size, problems.output_bytes.shape[1]
    classes = problems.class_price.shape[1]
    terms = Terms(problems, np.empty((count, layers + 1, classes)), width, float(slack))
    front_delays(problems, terms.delay_s)
    with_prices = isinstance(scorer, Policy) and scorer.knows_prices
    room = room_for(groups, width, layers, classes, most_found, with_prices)
    problem = np.repeat(np.arange(count), per_problem)
    level, following = _levels(aims, slack, groups * width, classes, most_found)
    dollars = aims.price_limits_usd_per_hour
    start_rows(
        problems, level.rows, np.arange(groups), problem, aims.targets_s.ravel(),
        aims.fill_limits_s.ravel(), np.inf if dollars is None else dollars.ravel(),
    )  # fmt: skip
    alive, nodes = groups, groups * most_found
    while alive > 0 and not should_stop():
        if isinstance(scorer, Policy) and noise is None:
            alive, nodes = run_levels(
                terms, scorer.compiled, level, following, room, alive, nodes, LEVELS
            )
            continue
        found, parents = expand(terms, level, alive, room)
        if found == 0:
            break
        c = room.candidates
        scores = scorer.log_probabilities(c.features[:found], c.state[:parents], c.row[:found])
        total = level.beams.score[c.parent[:found]] + scores
        if noise is not None:
            total = total + noise.temperature * noise.rng.gumbel(size=len(total))
        alive = select(terms, level, room, found, total, following, nodes)
        nodes += alive
        level, following = following, level
    code = np.zeros((groups, most_found, layers), np.int32)
    write_found(level.beams, room.nodes, problems.num_layers[problem], code)
    shape = (count, per_problem * most_found)
    return BeamResult(level.beams.found_s.reshape(shape), code.reshape(*shape, layers))


def _levels(
    aims: Aims, slack: float, size: int, classes: int, most_found: int
) -> tuple[Level, Level]:
    """Two levels to take turns, which share the limits and what is found."""
    groups, per_problem = aims.targets_s.size, aims.targets_s.shape[1]
    known_s = aims.known_s if math.isinf(slack) else aims.known_s * slack
    limit_s = np.repeat(known_s, per_problem)
    found_s = np.full((groups, most_found), np.inf)
    found_node = np.arange(groups * most_found).reshape(groups, most_found)
    first, second = (
        Level(
            empty_rows(size, 0, classes),
            Beams(np.arange(size), np.zeros(size), np.full(size, -1), limit_s, found_s, found_node),
        )
        for _ in range(2)
    )
    return first, second
