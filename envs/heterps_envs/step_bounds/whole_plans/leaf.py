"""Whether exactly some stages may do all layers of all micro-batches in so many seconds."""

from __future__ import annotations

from typing import Any

from heterps_envs.compiled import uncounted, uncounted_helper
from heterps_envs.step_bounds.whole_plans.amounts import (
    can_do,
    find_after,
    find_own_state,
    find_state,
)
from heterps_envs.step_bounds.whole_plans.flows import all_pass
from heterps_envs.step_bounds.whole_plans.staged import (
    FIRST,
    STOP,
    find_owners,
    find_ways_around,
    find_ways_in,
)
from heterps_envs.step_bounds.whole_plans.turns import find_trips, find_turns

# Of so many stages that begin with a layer all orders are looked at.
MOST_REPLICAS = 3


@uncounted
def survives(n: Any, staged: Any, step_s: float, count: int) -> bool:
    """Whether so many stages, whose ways in are known, may do all.

    Of several cuts with replicas behind them each is looked at alone.
    """
    find_owners(n, staged, count)
    for stage in range(count):
        find_own_state(n, staged, stage)
        find_after(n, staged, stage, count)
        find_ways_in(n, staged, stage)
    found = _survive(n, staged, step_s, count)
    # The search goes on with more stages: then layers have other owners.
    for stage in range(count):
        staged.after_s[stage] = 0.0
        find_state(n, staged, stage)
        find_ways_in(n, staged, stage)
    return bool(found)


@uncounted_helper
def _survive(n: Any, staged: Any, step_s: float, count: int) -> bool:
    find_ways_around(n, staged, count)
    for stage in range(count):
        staged.most[stage] = can_do(n, staged, step_s, stage, (0, 0))
    if not all_pass(staged, count, n.total):
        return False
    find_turns(n, staged, count)
    for stage in range(count):
        for is_behind in (False, True):
            size = _replicas(staged, count, stage, is_behind)
            if size > 1 and not _takes_turns(n, staged, step_s, count, (stage, size, is_behind)):
                return False
    return True


@uncounted_helper
def _replicas(staged: Any, count: int, stage: int, is_behind: bool) -> int:
    """How many stages begin where this one does, and it is the first of them; they are noted.

    Or, with `is_behind`, how many end where this one alone begins. 0 of too many.
    """
    first, size = staged.spans[stage, FIRST], 0
    for other in range(count):
        is_same = staged.spans[other, FIRST] == first and other != stage
        if is_same and (is_behind or other < stage):
            return 0
    for other in range(count):
        is_one = staged.spans[other, STOP if is_behind else FIRST] == first
        if first > 0 and is_one:
            staged.replicas[size] = other
            size += 1
    return size if size <= MOST_REPLICAS else 0


@uncounted_helper
def _takes_turns(n: Any, staged: Any, step_s: float, count: int, replicas: Any) -> bool:
    """Whether some order of first, and some of last micro-batches of replicas leaves the time."""
    behind, size, is_behind = replicas
    found = False
    # Numbers to the base of `size` are orders where their digits differ.
    for number in range(size ** (2 * size)):
        if found or not (_differ(number, size) and _differ(number // size**size, size)):
            continue
        rest, after = number, number // size**size
        for each in range(size):
            stage, turns = staged.replicas[each], (rest % size, after % size)
            if is_behind:
                find_trips(n, staged, stage, behind, turns)
                turns = (0, 0)
            staged.most[stage] = can_do(n, staged, step_s, stage, turns)
            rest, after = rest // size, after // size
        found = all_pass(staged, count, n.total)
    for each in range(size):
        stage = staged.replicas[each]
        staged.return_s[stage] = staged.tail_s[stage] = 0.0
        staged.most[stage] = can_do(n, staged, step_s, stage, (0, 0))
    return bool(found)


@uncounted_helper
def _differ(number: int, size: int) -> bool:
    """Whether the last digits differ."""
    seen = 0
    for _ in range(size):
        seen |= 1 << number % size
        number //= size
    return seen == (1 << size) - 1
