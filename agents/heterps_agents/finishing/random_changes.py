"""One change of a placement's stages, of a random kind: what a walk by the clock tries."""

from __future__ import annotations

from typing import Any

import numpy as np

from heterps_agents.search.stage_changes import (
    OTHER_OPTION,
    SPLIT,
    SWAP,
    change_stages,
    copy_stage,
    exchange,
    hand_layers,
    numbered_change,
    relocate,
    reverse,
)
from heterps_envs.closed_form.formula import MAX_REPLICAS
from heterps_envs.compiled import uncounted_helper

_SHIFTS = np.array([1, -1, 2, -2, 3, -3])
# Kinds of changes, each as likely as any other; replicas are handed over one at a time or several.
_MOVES_CUT, _DOUBLES, _RUN, _STEPS, _JOINS, _HANDS_ONE, _HANDS = 0, 1, 2, 3, 4, 5, 6
_OPTION, _SWAPS, _SPLITS, _RELOCATES, _REVERSES, _EXCHANGES, _LAYERS = 7, 8, 9, 10, 11, 12, 13
_NUM_KINDS = 14
_MOST_HANDED, _MOST_LAYERS = 8, 2


@uncounted_helper
def changed_stages(k: Any, stages: Any, count: int, numbers: Any, used: Any) -> int:
    """Changes stages in one way; returns how many there are then, 0 where it makes no sense."""
    what, row, third, fourth = numbers[0] % _NUM_KINDS, numbers[1] % count, numbers[2], numbers[3]
    most = min(k.num_micro_batches, MAX_REPLICAS)
    old = stages[row, 2]
    if what == _MOVES_CUT:
        if row == count - 1:
            return 0
        start = stages[row - 1, 0] if row > 0 else 0
        stages[row, 0] += _SHIFTS[third % len(_SHIFTS)]
        return count if start < stages[row, 0] < stages[row + 1, 0] else 0
    if what == _DOUBLES:
        stages[row, 2] = old * 2 if third % 2 == 0 else old // 2
    elif what == _STEPS:
        stages[row, 2] = old + third % 9 - 4
    elif what == _JOINS:
        return _join(stages, count, row, third, most)
    elif what == _RUN:  # neighbours that have as many get as many more or fewer
        new, until = old + third % 9 - 4, row
        while until < count and until - row <= fourth % 16 and stages[until, 2] == old:
            stages[until, 2] = new
            until += 1
    elif what in (_HANDS_ONE, _HANDS):
        handed = 1 if what == _HANDS_ONE else 1 + fourth % _MOST_HANDED
        return _hand_over(stages, count, row, third % count, handed, most)
    elif what >= _RELOCATES:
        return _in_other_order(stages, count, row, third % count, what, 1 + fourth % _MOST_LAYERS)
    else:
        known = OTHER_OPTION if what == _OPTION else SWAP if what == _SWAPS else SPLIT
        return change_stages(k, stages, count, numbered_change(k, count, known, row, third), used)
    return count if 1 <= stages[row, 2] <= most and stages[row, 2] != old else 0


@uncounted_helper
def _in_other_order(stages: Any, count: int, row: int, other: int, what: int, layers: int) -> int:
    """Moves a stage with its layers, or several, or layers from one stage to another."""
    first, last = min(row, other), max(row, other)
    if first == last:
        return 0
    if what == _RELOCATES:
        relocate(stages, row, other)
    elif what == _REVERSES:
        reverse(stages, first, last)
    elif what == _EXCHANGES:
        exchange(stages, first, last)
    else:
        return count if hand_layers(stages, row, other, layers) else 0
    return count


@uncounted_helper
def _hand_over(stages: Any, count: int, row: int, other: int, handed: int, most: int) -> int:
    """Gives replicas to another stage of the same option."""
    if other == row or stages[other, 1] != stages[row, 1] or stages[row, 2] <= handed:
        return 0
    stages[row, 2] -= handed
    stages[other, 2] += handed
    return count if stages[other, 2] <= most else 0


@uncounted_helper
def _join(stages: Any, count: int, row: int, number: int, most: int) -> int:
    """Joins a stage with the next one, on the devices of either or, of one option, of both."""
    if row == count - 1:
        return 0
    option, replicas = stages[row + 1, 1], stages[row + 1, 2]
    if number % 3 == 0:
        option, replicas = stages[row, 1], stages[row, 2]
    elif number % 3 == 1 and option == stages[row, 1]:
        replicas += stages[row, 2]
    if replicas > most:
        return 0
    stages[row + 1, 1], stages[row + 1, 2] = option, replicas
    for other in range(row, count - 1):
        copy_stage(stages, other + 1, stages, other)
    return count - 1
