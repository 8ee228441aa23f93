"""How Oobleck's code of 2023 regroups the survivors of its pipelines: simple, borrow, merge.

Source: Jang et al., Oobleck, SOSP 2023, section 5.1, and the behaviour of its artifact: dead nodes
leave their groups; each group that is too small takes the last node of the longest group that can
spare one; where none can, groups are put together until they are large enough.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

Node = TypeVar("Node", int, str)


def regroup(
    groups: Sequence[Sequence[Node]],
    lost: Collection[Node],
    is_enough: Callable[[Sequence[Node]], bool],
) -> list[list[Node]]:
    """Groups of the survivors that are all large enough.

    Args:
        groups: Nodes of each pipeline.
        lost: Nodes that are gone.
        is_enough: Whether a group can hold the model; a larger one of the same nodes can, too.

    Returns:
        The groups; those that did not have to be merged keep their place. Empty where all
        survivors together are too few.
    """
    left = [found for group in groups if (found := [node for node in group if node not in lost])]
    for group in left:
        while not is_enough(group) and (donor := _donor(left, group, is_enough)):
            group.append(donor.pop())
    if all(is_enough(group) for group in left):
        return left
    return _merged(left, is_enough)


def _donor(
    groups: list[list[Node]], taker: list[Node], is_enough: Callable[[Sequence[Node]], bool]
) -> list[Node] | None:
    """The longest group that stays large enough without its last node; of equals the last."""
    able = [g for g in groups if g is not taker and len(g) > 1 and is_enough(g[:-1])]
    return max(able, key=lambda group: (len(group), group[0]), default=None)


def _merged(
    groups: list[list[Node]], is_enough: Callable[[Sequence[Node]], bool]
) -> list[list[Node]]:
    """Shortest first, put together until there is enough; what is left over joins the last."""
    out: list[list[Node]] = []
    gathered: list[Node] = []
    for group in sorted(groups, key=lambda group: (len(group), group[0])):
        gathered.extend(group)
        if is_enough(gathered):
            out.append(gathered)
            gathered = []
    if gathered and out:
        out[-1].extend(gathered)
    return out
