"""A plain ladder of targets: greedy, sampling or a beam for many problems at once.

The policy answers "which stage next, if no stage may exceed this target?". Beams of one width
(`heterps_agents.learned.beam`) run for some targets, the cuts of what is found are refined
(`heterps_agents.search.refine`), and rounds of targets close in on the best one. This is what
training curves show; `heterps_agents.learned.search` finds better placements of one problem in less
time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_agents.learned.beam import Aims, BeamResult, Noise, Scorer, beam
from heterps_agents.search.refine import refine
from heterps_envs.arrays import Floats
from heterps_envs.environments.stage.packed import StageProblems

ROUNDS, TARGETS_PER_ROUND = 3, 8
# A search without any known placement looks for targets up to this multiple of the lower bound.
LARGEST_TARGET = 32.0
# Step times to aim at beside the targets, over the best known: from hardly to clearly better, which
# sets fill limits, and hardly any limit.
WANTED_SHARES = (0.9999, 0.99, 0.97, 0.93, 0.85, 2.0)


class Decoded(NamedTuple):
    """The best placements of N problems.

    Attributes:
        step_time_s: (N,) closed form; inf where none was found.
        bottleneck_s: (N,) the target that they keep.
        code: (N, L) int32, see `heterps_envs.closed_form.formula`.
        evaluations: Placements that were built, over all problems: the width for every beam.
    """

    step_time_s: Floats
    bottleneck_s: Floats
    code: NDArray[np.int32]
    evaluations: int


def decode(
    policy: Scorer,
    problems: StageProblems,
    *,
    width: int = 16,
    rounds: int = ROUNDS,
    targets_per_round: int = TARGETS_PER_ROUND,
    known: Decoded | None = None,
    noise: Noise | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Decoded:
    """Searches the target in rounds; each round runs one beam for every problem and target.

    Args:
        policy: Scores the stages.
        problems: N problems.
        width: Partial placements kept for each target; 1 is greedy.
        rounds: How often the targets close in.
        targets_per_round: Targets of one round.
        known: Placements to start from; they are returned where nothing better is found.
        noise: Without it the likeliest are kept; with it placements are sampled.
        should_stop: Asked between rounds and every few stages; the best so far is returned.
    """
    count = problems.num_problems
    best = known or Decoded(
        np.full(count, np.inf),
        np.full(count, np.inf),
        np.zeros((count, problems.output_bytes.shape[1]), np.int32),
        0,
    )
    low, high = _first_range(problems, best)
    evaluations = best.evaluations
    for _ in range(rounds):
        shares = np.linspace(0.0, 1.0, targets_per_round)
        targets = low[:, None] * (high / low)[:, None] ** shares
        limits = best.step_time_s[:, None] * _wanted_shares(targets_per_round) - _below(targets)
        found = beam(
            policy, problems, Aims(targets, limits, best.step_time_s), width,
            noise=noise, should_stop=should_stop,
        )  # fmt: skip
        bottleneck_s = np.full(targets.shape, np.inf)
        refine(problems, found.step_time_s, bottleneck_s, found.code)
        evaluations += targets.size * width
        low, high = _next_range(targets, found, bottleneck_s, best, low, high)
        better = found.step_time_s.min(axis=1) < best.step_time_s
        chosen = (np.arange(count), found.step_time_s.argmin(axis=1))
        best = Decoded(
            np.where(better, found.step_time_s[chosen], best.step_time_s),
            np.where(better, bottleneck_s[chosen], best.bottleneck_s),
            np.where(better[:, None], found.code[chosen], best.code),
            evaluations,
        )
        if should_stop():
            break
    return best


def _wanted_shares(count: int) -> Floats:
    """(count,) step times to aim at beside the targets, in turns."""
    return np.resize(WANTED_SHARES, count)


def _below(targets: Floats) -> Floats:
    """(N, P) the next smaller target of each: a bottleneck between the two is looked for."""
    return np.concatenate([0.5 * targets[:, :1], targets[:, :-1]], axis=1)


def _first_range(problems: StageProblems, best: Decoded) -> tuple[Floats, Floats]:
    """Targets below which no placement is, and above which none is worth it."""
    last = (np.arange(problems.num_problems), problems.num_layers)
    fill_s = problems.fastest_prefix_s[last]
    low = np.maximum(problems.lower_bound_s - 2 * fill_s, problems.least_target_s)
    unknown = LARGEST_TARGET * problems.lower_bound_s
    high = np.where(np.isfinite(best.step_time_s), best.step_time_s, unknown)
    return low, np.maximum(high, 1.01 * low)


def _next_range(
    targets: Floats,
    found: BeamResult,
    bottleneck_s: Floats,
    best: Decoded,
    low: Floats,
    high: Floats,
) -> tuple[Floats, Floats]:
    """Targets around the best one; larger ones where nothing was found at all."""
    rows = np.arange(len(targets))
    chosen = found.step_time_s.argmin(axis=1)
    improved = found.step_time_s[rows, chosen] < best.step_time_s
    below = targets[rows, np.maximum(chosen - 1, 0)]
    above = np.minimum(bottleneck_s[rows, chosen], targets[rows, chosen])
    # Nothing better than what is known: look around its own bottleneck.
    known = np.where(np.isfinite(best.bottleneck_s), best.bottleneck_s, high)
    next_low = np.where(improved, below, np.maximum(low, 0.8 * known))
    next_high = np.where(improved, above, np.minimum(high, known))
    lost = ~improved & np.isinf(best.step_time_s)
    next_low = np.where(lost, high, np.minimum(next_low, 0.9 * next_high))
    return next_low, np.where(lost, LARGEST_TARGET * high, next_high)
