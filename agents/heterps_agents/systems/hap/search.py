"""The best program for given shares.

The published search goes best first over sets of properties, without an estimate of what is left,
and keeps the cheapest way to each set. Along a chain the set is one state behind a layer, so that
the same is one sweep from the first layer to the last.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from heterps_agents.systems.hap.chain import (
    END_STATES,
    START_STATES,
    Chain,
    Instruction,
    Program,
    State,
)
from heterps_configs.errors import InfeasibleError
from heterps_envs.arrays import Floats

# Of each state: seconds until it is there, and the last instruction with what was before it.
_Back = tuple[Instruction, "_Back"] | None
_Reached = dict[State, tuple[float, _Back]]


def best_program(chain: Chain, shares: Floats) -> Program:
    """The program with the least seconds at (segments, n) shares.

    Raises:
        InfeasibleError: No program leads from the data to the loss.
    """
    reached: _Reached = dict.fromkeys(START_STATES, (0.0, None))
    for place, (border, stays) in enumerate(zip(chain.borders, chain.stays, strict=True)):
        kept = {state: way for state, way in reached.items() if state in stays}
        reached = _extended(reached, border, shares, kept)
        if place < len(chain.layers):
            reached = _extended(reached, chain.layers[place], shares, {})
    ends = [reached[state] for state in END_STATES if state in reached]
    if not ends:
        raise InfeasibleError("no program leads from the data to the loss")
    back = min(ends, key=lambda end: end[0])[1]
    found: list[Instruction] = []
    while back is not None:
        found.append(back[0])
        back = back[1]
    return tuple(reversed(found))


def _extended(
    reached: _Reached, instructions: Iterable[Instruction], shares: Floats, found: _Reached
) -> _Reached:
    """States behind one more instruction, beside those that are there already."""
    found = dict(found)
    for each in instructions:
        if each.before not in reached:
            continue
        begin_s, back = reached[each.before]
        end_s = begin_s + each.seconds(shares[each.segment])
        if end_s < found.get(each.after, (math.inf, None))[0]:
            found[each.after] = end_s, (each, back)
    return found
