"""Whether micro-batches find a way through stages that can do so many each: a largest flow."""

from __future__ import annotations

from typing import Any

from heterps_envs.compiled import uncounted, uncounted_helper
from heterps_envs.step_bounds.whole_plans.staged import FIRST, STOP

# Of flows that are no whole numbers; where more are needed, all are said to find a way.
MOST_WAYS = 100


@uncounted
def all_pass(staged: Any, count: int, total: float) -> bool:
    """Whether `total` can pass from the first to the last layer.

    Args:
        staged: `Staged`, of which `most` is read.
        count: Stages.
        total: Of micro-batches.
    """
    used = staged.used
    for stage in range(count):
        used[stage] = 0.0
    passed, least = 0.0, 1e-9 * total
    for _ in range(MOST_WAYS):
        if passed >= total - least:
            return True
        more = _one_more(staged, count, total, least)
        if more <= 0:
            return False
        passed += more
    return True


@uncounted_helper
def _one_more(staged: Any, count: int, total: float, least: float) -> float:
    """What passes on one more way, which may send back what passed before; 0: nothing."""
    used, reached = staged.used, staged.reached
    num_layers = len(reached) - 1
    # By cut the stage over which it is reached, below 0 where it is left backwards.
    for cut in range(num_layers + 1):
        reached[cut] = 0
    reached[0] = count + 1
    is_new = True
    while is_new and reached[num_layers] == 0:
        is_new = False
        for stage in range(count):
            first, stop = staged.spans[stage, FIRST], staged.spans[stage, STOP]
            if reached[first] != 0 and reached[stop] == 0:
                if staged.most[stage] - used[stage] > least:
                    reached[stop], is_new = stage + 1, True
            elif reached[stop] != 0 and reached[first] == 0 and used[stage] > least:
                reached[first], is_new = -stage - 1, True
    if reached[num_layers] == 0:
        return 0.0
    for is_found in (False, True):
        if not is_found:
            more = total
        cut = num_layers
        while cut != 0:
            sign = 1 if reached[cut] > 0 else -1
            stage = sign * reached[cut] - 1
            left = staged.most[stage] - used[stage] if sign > 0 else used[stage]
            if is_found:
                used[stage] += sign * more
            else:
                more = min(more, left)
            cut = staged.spans[stage, FIRST] if sign > 0 else staged.spans[stage, STOP]
    return float(more)
