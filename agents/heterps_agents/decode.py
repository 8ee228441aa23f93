"""From a policy to a placement: greedy or beam search over stages, inside a search for the target.

The policy answers "which stage next, if no stage may exceed this target?". A beam keeps the W most
likely partial placements for each target. Two that cover the same layers with the same devices and
the same front class are one state: the one with the shorter step time behind is kept, which loses
nothing (`heterps_agents.exact` uses the same states). With width 1 the beam is greedy decoding.
The cuts of what is found are refined (`heterps_agents.refine`), and rounds of targets close in on
the best one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from heterps_agents.policy import Policy
from heterps_agents.refine import refine
from heterps_envs.closed_form import CUT_BIT, REPLICA_SHIFT
from heterps_envs.stage_kernels import advance, observe
from heterps_envs.stage_problems import StageProblems
from heterps_envs.stage_state import (
    RUNNING,
    StageRows,
    StageView,
    empty_rows,
    empty_view,
    stage_of,
    start_rows,
)

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

ROUNDS, TARGETS_PER_ROUND = 3, 8
# A search without any known placement looks for targets up to this multiple of the lower bound.
LARGEST_TARGET = 32.0
WANTED_SHARES = (0.999, 0.97)
_UNSEEN = -1e9


class Decoded(NamedTuple):
    """The best placements of N problems.

    Attributes:
        step_time_s: (N,) closed form; inf where none was found.
        bottleneck_s: (N,) the target that they keep.
        code: (N, L) int16, see `heterps_envs.closed_form`.
        evaluations: Placements that were built, over all problems: the width for every beam.
    """

    step_time_s: Floats
    bottleneck_s: Floats
    code: NDArray[np.int16]
    evaluations: int


def decode(
    policy: Policy,
    problems: StageProblems,
    *,
    width: int = 16,
    rounds: int = ROUNDS,
    targets_per_round: int = TARGETS_PER_ROUND,
    known: Decoded | None = None,
    temperature: float = 0.0,
    seed: int = 0,
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
        temperature: 0 keeps the likeliest; above it, scores get that much Gumbel noise (sampling).
        seed: Of the noise.
        should_stop: Asked between rounds.
    """
    count = problems.num_problems
    best = known or Decoded(
        np.full(count, np.inf),
        np.full(count, np.inf),
        np.zeros((count, problems.output_bytes.shape[1]), np.int16),
        0,
    )
    rng = np.random.default_rng(seed)
    low, high = _first_range(problems, best)
    evaluations = best.evaluations
    for _ in range(rounds):
        shares = np.linspace(0.0, 1.0, targets_per_round)
        targets = low[:, None] * (high / low)[:, None] ** shares
        limits = best.step_time_s[:, None] * _wanted_shares(targets_per_round) - _below(targets)
        found = beam(policy, problems, targets, limits, width, best.step_time_s, temperature, rng)
        refine(problems, found.step_time_s, found.bottleneck_s, found.code)
        evaluations += targets.size * width
        low, high = _next_range(targets, found, best, low, high)
        better = found.step_time_s.min(axis=1) < best.step_time_s
        chosen = (np.arange(count), found.step_time_s.argmin(axis=1))
        best = Decoded(
            np.where(better, found.step_time_s[chosen], best.step_time_s),
            np.where(better, found.bottleneck_s[chosen], best.bottleneck_s),
            np.where(better[:, None], found.code[chosen], best.code),
            evaluations,
        )
        if should_stop():
            break
    return best


def _wanted_shares(count: int) -> Floats:
    """Step times to aim at beside the targets, over the best known: hardly and clearly better."""
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
    targets: Floats, found: BeamResult, best: Decoded, low: Floats, high: Floats
) -> tuple[Floats, Floats]:
    """Targets around the best one; larger ones where nothing was found at all."""
    rows = np.arange(len(targets))
    chosen = found.step_time_s.argmin(axis=1)
    improved = found.step_time_s[rows, chosen] < best.step_time_s
    below = targets[rows, np.maximum(chosen - 1, 0)]
    above = np.minimum(found.bottleneck_s[rows, chosen], targets[rows, chosen])
    # Nothing better than what is known: look around its own bottleneck.
    bottleneck = np.where(np.isfinite(best.bottleneck_s), best.bottleneck_s, high)
    next_low = np.where(improved, below, np.maximum(low, 0.8 * bottleneck))
    next_high = np.where(improved, above, np.minimum(high, bottleneck))
    lost = ~improved & np.isinf(best.step_time_s)
    next_low = np.where(lost, high, np.minimum(next_low, 0.9 * next_high))
    return next_low, np.where(lost, LARGEST_TARGET * high, next_high)


class BeamResult(NamedTuple):
    """Best placement of each problem and target: (N, P), and (N, P, L) for the code."""

    step_time_s: Floats
    bottleneck_s: Floats
    code: NDArray[np.int16]


def beam(
    policy: Policy,
    problems: StageProblems,
    targets: Floats,
    fill_limits_s: Floats,
    width: int,
    known_s: Floats,
    temperature: float = 0.0,
    rng: np.random.Generator | None = None,
) -> BeamResult:
    """One beam for every problem and target, all at once.

    Args:
        policy: Scores the stages.
        problems: N problems.
        targets: (N, P) seconds.
        fill_limits_s: (N, P) seconds; inf for no limit.
        width: Partial placements kept for each beam.
        known_s: (N,) step times that a placement must beat.
        temperature: See `decode`.
        rng: Of the noise; needed where there is some.
    """
    count, per_problem = targets.shape
    groups, layers = targets.size, problems.output_bytes.shape[1]
    classes = problems.class_price.shape[1]
    best_s = np.repeat(known_s, per_problem)
    bottleneck_s, found_s = np.full(groups, np.inf), np.full(groups, np.inf)
    code = np.zeros((groups, layers), np.int16)
    rows = empty_rows(groups, layers, classes)
    start_rows(
        problems,
        rows,
        np.arange(groups),
        np.repeat(np.arange(count), per_problem),
        targets.ravel(),
        fill_limits_s.ravel(),
    )
    group, score = np.arange(groups), np.zeros(groups)
    while len(group):
        view = empty_view(len(group), classes, with_shorter=True)
        observe(problems, rows, view, np.arange(len(group)))
        view.allowed[rows.status != RUNNING] = False
        parent, action = np.nonzero(view.allowed)
        if not len(parent):
            break
        total = score[parent] + _log_probabilities(policy, view, parent, action)
        if temperature > 0:
            assert rng is not None
            total = total + temperature * rng.gumbel(size=len(total))
        chosen = np.empty(groups * width, np.int64)
        chosen_score = np.empty(groups * width)
        kept = _select(
            problems, rows, view, group, parent, action, total, width,
            best_s, found_s, bottleneck_s, code, chosen, chosen_score,
        )  # fmt: skip
        parent, action = parent[chosen[:kept]], action[chosen[:kept]]
        group, score = group[parent], chosen_score[:kept]
        rows = StageRows._make(array[parent] for array in rows)
        view = StageView._make(array[parent] for array in view)
        advance(problems, rows, view, action)
    shape = (count, per_problem)
    return BeamResult(
        found_s.reshape(shape), bottleneck_s.reshape(shape), code.reshape(*shape, layers)
    )


def _log_probabilities(
    policy: Policy, view: StageView, parent: Integers, action: Integers
) -> NDArray[np.float32]:
    """(N,) of the allowed candidates; rows without any are left out."""
    alive, row = np.unique(parent, return_inverse=True)
    return policy.log_probabilities(view.candidates[parent, action], view.state[alive], row)


@njit(cache=True)
def _select(
    p: Any,
    rows: Any,
    view: Any,
    group: Any,
    parent: Any,
    action: Any,
    total: Any,
    width: int,
    best_s: Any,
    found_s: Any,
    bottleneck_s: Any,
    code: Any,
    chosen: Any,
    chosen_score: Any,
) -> int:
    """Keeps the best candidates of every beam; finished placements go to `found_s`, `code`, ...

    Args:
        p: `StageProblems`.
        rows: `StageRows` of the partial placements.
        view: Their `StageView`.
        group: (B,) beam of each row, ascending.
        parent: (N,) row of each candidate, ascending.
        action: (N,).
        total: (N,) scores.
        width: Kept for each beam.
        best_s: (G,) step time to beat; updated.
        found_s: (G,) written.
        bottleneck_s: (G,) written.
        code: (G, L) written.
        chosen: Written: indices of kept candidates, beam by beam.
        chosen_score: Written: their scores.

    Returns:
        How many were kept.
    """
    kept, begin = 0, 0
    keys = np.empty(width, np.int64)
    while begin < len(parent):
        beam_index = group[parent[begin]]
        end = begin
        while end < len(parent) and group[parent[end]] == beam_index:
            end += 1
        for index in range(begin, end):
            _finish(
                p,
                rows,
                view,
                parent[index],
                action[index],
                beam_index,
                best_s,
                found_s,
                bottleneck_s,
                code,
            )
        first = kept
        for offset in np.argsort(-total[begin:end], kind="mergesort"):
            index = begin + offset
            row, act = parent[index], action[index]
            start, reached_s = view.first_layer[row, act], view.behind_s[row, act]
            if start == 0 or total[index] <= _UNSEEN:
                continue
            if reached_s + p.fastest_prefix_s[rows.problem[row], start] >= best_s[beam_index]:
                continue
            key = _state_key(rows, row, act, start)
            same = -1
            for slot in range(kept - first):
                if keys[slot] == key:
                    same = first + slot
            if same >= 0:
                other = chosen[same]
                if reached_s < view.behind_s[parent[other], action[other]]:
                    chosen[same] = index
            elif kept - first < width:
                keys[kept - first] = key
                chosen[kept], chosen_score[kept] = index, total[index]
                kept += 1
        begin = end
    return kept


@njit(cache=True)
def _state_key(rows: Any, row: int, action: int, start: int) -> int:
    """One number for (layers left, front class, devices used)."""
    kind, replicas = stage_of(action, rows.used.shape[1])
    key = start * 16 + kind
    for other in range(rows.used.shape[1]):
        key = key * 1_000_003 + rows.used[row, other] + (replicas if other == kind else 0)
    return key


@njit(cache=True)
def _finish(
    p: Any,
    rows: Any,
    view: Any,
    row: int,
    action: int,
    beam_index: int,
    best_s: Any,
    found_s: Any,
    bottleneck_s: Any,
    code: Any,
) -> None:
    """Records a candidate that covers the rest, if it is the best of its beam."""
    if view.first_layer[row, action] != 0 or view.behind_s[row, action] >= best_s[beam_index]:
        return
    best_s[beam_index] = found_s[beam_index] = view.behind_s[row, action]
    bottleneck_s[beam_index] = view.behind_s[row, action] - view.fill_s[row, action]
    code[beam_index] = rows.code[row]
    kind, replicas = stage_of(action, rows.used.shape[1])
    stop = rows.position[row]
    for layer in range(stop):
        code[beam_index, layer] = kind | ((replicas - 1) << REPLICA_SHIFT)
    if rows.front_class[row] == kind:
        code[beam_index, stop - 1] |= CUT_BIT
