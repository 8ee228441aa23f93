"""Replicas take turns: their first micro-batches are different ones, and so are their last.

Of the forward passes in front of a cut, the i-th to end of all ends no sooner than if every stage
there had the i-th micro-batch that can be there, one after the other. The stages behind the cut
begin with different ones of these, in some order; and the same holds back to front of their last
backward passes.
"""

from __future__ import annotations

from typing import Any

from heterps_envs.compiled import uncounted_helper
from heterps_envs.step_bounds.whole_plans.staged import FIRST, OPTION, STOP, unit_seconds


@uncounted_helper
def find_turns(n: Any, staged: Any, count: int) -> None:
    """Writes `in_at` and `out_at` of so many stages, whose first turns are known."""
    num_turns = staged.in_at.shape[1]
    for stage in range(count):
        first = staged.spans[stage, FIRST]
        forward_s, backward_s = unit_seconds(n, staged, stage)
        before_s = after_s = 0.0
        across_s = _least_message_s(n, staged, stage)
        for turn in range(num_turns):
            begin_s, end_s = staged.in_s[stage], staged.out_s[stage]
            if first > 0 and turn > 0:
                begin_s = max(begin_s, _turn_s(staged, staged.done_s, stage, turn) + across_s)
                back_s = _turn_s(staged, staged.left_s, stage, turn) + across_s
                end_s = max(end_s, staged.waits * back_s)
            staged.in_at[stage, turn], staged.out_at[stage, turn] = begin_s, end_s
            before_s = max(before_s, begin_s) + forward_s
            after_s = max(after_s, end_s) + staged.waits * backward_s
            staged.done_s[stage, turn], staged.left_s[stage, turn] = before_s, after_s


@uncounted_helper
def find_trips(n: Any, staged: Any, stage: int, behind: int, turns: Any) -> None:
    """Writes `return_s` and `tail_s` of a stage all of whose micro-batches go to one stage.

    That has done as many other forward passes before as its first turn says, and has as many other
    backward passes to do after.
    """
    across_s = staged.message_s[
        staged.spans[behind, FIRST],
        n.class_of[staged.spans[stage, OPTION]],
        n.class_of[staged.spans[behind, OPTION]],
    ]
    forward_s, backward_s = unit_seconds(n, staged, behind)
    backward_s *= staged.waits
    there_s = staged.in_s[behind] + (1 + turns[0]) * forward_s + staged.around_s[behind]
    staged.return_s[stage] = there_s + backward_s + staged.waits * across_s
    back_s = staged.around_s[behind] + (1 + turns[1]) * backward_s + staged.out_s[behind]
    staged.tail_s[stage] = across_s + forward_s + back_s


@uncounted_helper
def _least_message_s(n: Any, staged: Any, stage: int) -> float:
    """From any stage in front."""
    first, least_s, found = staged.spans[stage, FIRST], 0.0, False
    for front in range(stage):
        if first > 0 and staged.spans[front, STOP] == first:
            kind = n.class_of[staged.spans[front, OPTION]]
            across_s = staged.message_s[first, kind, n.class_of[staged.spans[stage, OPTION]]]
            least_s = min(least_s, across_s) if found else across_s
            found = True
    return float(least_s)


@uncounted_helper
def _turn_s(staged: Any, seconds: Any, stage: int, turn: int) -> float:
    """The least but so many of what the stages in front of one do."""
    first, num_turns = staged.spans[stage, FIRST], seconds.shape[1]
    least_s = 0.0
    for front in range(stage):
        if staged.spans[front, STOP] != first:
            continue
        for own in range(num_turns):
            # How many there are that are no later than this one.
            number, value = 0, seconds[front, own]
            for other in range(stage):
                if staged.spans[other, STOP] == first:
                    for each in range(num_turns):
                        number += seconds[other, each] <= value
            if number > turn and (least_s == 0.0 or value < least_s):
                least_s = value
    return float(least_s)
