"""Even placements with options: where searches begin that have many options to choose from.

All stages of a class have one option, and all its devices; layers are cut in proportion to how fast
the stages are. On one class these are the plans that are found by hand: tensor-parallel degree,
stages, replicas. On several classes every class gets as many stages, in either order of speed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from heterps_agents.interface.question import Question
from heterps_agents.search.proportional import middles_of
from heterps_envs.arrays import Code, Floats
from heterps_envs.closed_form.formula import MAX_REPLICAS
from heterps_envs.closed_form.objective import code_of
from heterps_envs.compiled import uncounted
from heterps_envs.options import Memory

# Of one class.
NUM_STAGES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)


def even_codes(question: Question, most: int) -> list[Code]:
    """The best of them by the closed form, at most so many; those that fit come first."""
    known = {} if question.problem is None else question.problem.derived
    key = even_codes, question.goal
    ranked = known.get(key)
    if not isinstance(ranked, list):
        codes = {code.tobytes(): code for code in _all(question)}
        known[key] = ranked = sorted(codes.values(), key=question.cost)
    question.budget.spend(len(ranked))
    return [code.copy() for code in ranked[:most]]


def _all(question: Question) -> Iterator[Code]:
    tables, options = question.tables, question.options
    middles = np.stack([middles_of(layers_s) for layers_s in tables.compute_s.T])
    by_way: dict[tuple[int, Memory, bool], list[int]] = {}
    for index, option in enumerate(options):
        by_way.setdefault(option[1:], []).append(index)
    for way in by_way.values():
        speed = 1.0 / np.maximum(tables.compute_s.sum(axis=0)[way], 1e-30)
        fastest_first = [way[i] for i in np.argsort(-speed, kind="stable")]
        for used in range(1, len(way) + 1):
            chosen = fastest_first[:used]
            for number in NUM_STAGES:
                if number * used <= tables.num_layers:
                    yield from _in_both_orders(question, middles, chosen, number)


def _in_both_orders(
    question: Question, middles: Floats, chosen: list[int], number: int
) -> Iterator[Code]:
    tables = question.tables
    limit = min(MAX_REPLICAS, tables.num_micro_batches)
    replicas = np.minimum(tables.most_replicas[chosen] // number, limit)
    if replicas.min() < 1:
        return
    whole_s = np.maximum(tables.compute_s.sum(axis=0), 1e-30)
    for order in (1, -1)[: len(chosen)]:
        kinds = np.repeat(chosen[::order], number)
        own = np.repeat(replicas[::order], number)
        stages = np.empty((len(kinds), 3), np.int64)
        _cut(middles[kinds[0]], own / whole_s[kinds], stages)
        stages[:, 1], stages[:, 2] = kinds, own
        yield code_of(stages, len(kinds))


@uncounted
def _cut(middles: Any, weights: Any, stages: Any) -> None:
    """Writes ends of stages: as `cut_in_proportion`, but that each has one layer at least."""
    count, layers = len(weights), len(middles)
    total = 0.0
    for weight in weights:
        total += weight
    reached, stop, beyond = 0.0, 0, 0
    for row in range(count):
        reached += weights[row]
        while stop < layers and (row == count - 1 or middles[stop] < reached / total - 1e-12):
            stop += 1
        beyond = max(beyond, stop - row - 1)
        stages[row, 0] = row + 1 + min(beyond, layers - count)
