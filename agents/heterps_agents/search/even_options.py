"""Even placements with options: where searches begin that have many options to choose from.

All stages of a class have one option, and all its devices; layers are cut in proportion to how fast
the stages are. On one class these are the plans that are found by hand: tensor-parallel degree,
stages, replicas. On several classes every class gets as many stages, in either order of speed.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from heterps_agents.interface.question import Question
from heterps_agents.search.proportional import cut_in_proportion
from heterps_envs.arrays import Code, Integers
from heterps_envs.closed_form.formula import MAX_REPLICAS
from heterps_envs.closed_form.objective import code_of
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
                    yield from _in_both_orders(question, chosen, number)


def _in_both_orders(question: Question, chosen: list[int], number: int) -> Iterator[Code]:
    most = question.tables.most_replicas[chosen]
    limit = min(MAX_REPLICAS, question.tables.num_micro_batches)
    replicas = np.minimum(most // number, limit)
    if replicas.min() < 1:
        return
    for order in (1, -1)[: len(chosen)]:
        kinds = np.repeat(chosen[::order], number)
        yield _cut(question, kinds, np.repeat(replicas[::order], number))


def _cut(question: Question, kinds: Integers, replicas: Integers) -> Code:
    """Layers in proportion to the speed of the stages; each has one at least."""
    compute_s = question.tables.compute_s
    whole_s = np.maximum(compute_s.sum(axis=0), 1e-30)
    stops = cut_in_proportion(compute_s[:, kinds[0]], replicas / whole_s[kinds])
    count, layers = len(kinds), question.tables.num_layers
    rows = np.arange(1, count + 1)
    stops = rows + np.maximum.accumulate(np.maximum(stops - rows, 0))
    stops = np.minimum(stops, layers - count + rows)
    stages = np.empty((count, 3), np.int64)
    stages[:, 0], stages[:, 1], stages[:, 2] = stops, kinds, replicas
    return code_of(stages, count)
