"""Groups are dealt to pipelines, the slow ones in front of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations

from heterps_agents.systems.malleus.groups import Kind
from heterps_agents.systems.malleus.plans import Group

# All ways of dealing more slow groups than this to pipelines are too many; they are dealt evenly.
MAX_ENUMERATED = 6
# Ways to deal them to pipelines: all of six to four pipelines.
MAX_PATTERNS = 5000

_Pattern = tuple[tuple[int, ...], ...]


def dealt(
    groups: Sequence[Group],
    lengths: Sequence[int],
    is_slow: Callable[[Group], bool],
    kind: Callable[[Group], Kind],
) -> Iterator[list[list[Group]]]:
    """Ways to deal groups to pipelines, slow ones in front of each.

    Every way to deal the slow groups is tried where there are few of them; the others fill the
    pipelines up to their length.

    Args:
        groups: Of all nodes.
        lengths: Stages of each pipeline; no more than there are groups.
        is_slow: Of the others one is as good as another.
        kind: Of a group; slow ones of one kind are alike.
    """
    normal = [group for group in groups if not is_slow(group)]
    slow = sorted((group for group in groups if is_slow(group)), key=lambda group: -group.slowdown)
    # The slowest have no place where others suffice.
    slow = slow[max(0, len(groups) - sum(lengths)) :]
    kinds = list(map(kind, slow))
    seen = set()
    for pattern in _patterns(len(slow), lengths):
        # Pipelines of equal lengths with groups of equal kinds are alike.
        alike = ([kinds[index] for index in own] for own in pattern)
        key = tuple(sorted((n, *own) for n, own in zip(lengths, alike, strict=True)))
        if key in seen:
            continue
        seen.add(key)
        pipelines, free = [], iter(normal)
        for length, own in zip(lengths, pattern, strict=True):
            front = [slow[index] for index in own]
            pipelines.append([*front, *(next(free) for _ in range(length - len(front)))])
        yield sorted(pipelines, key=lambda own: -sum(map(is_slow, own)))


def lengths_of(num_groups: int, num_pipelines: int, num_stages: int) -> list[int]:
    """Stages of each pipeline: as before where the groups suffice, else as even as possible."""
    total = min(num_groups, num_pipelines * num_stages)
    even, more = divmod(total, num_pipelines)
    return [even + (index < more) for index in range(num_pipelines)]


def _patterns(num_slow: int, lengths: Sequence[int]) -> Iterator[_Pattern]:
    """Which slow groups each pipeline has; of equal pipelines one order only."""
    if num_slow > MAX_ENUMERATED or len(lengths) ** num_slow > MAX_PATTERNS:
        even: list[list[int]] = [[] for _ in lengths]
        for index in range(num_slow):
            open_ = [i for i, own in enumerate(even) if len(own) < lengths[i]]
            even[min(open_, key=lambda i: len(even[i]))].append(index)
        yield tuple(map(tuple, even))
        return

    def rest(left: tuple[int, ...], pipelines: Sequence[int]) -> Iterator[_Pattern]:
        if not pipelines:
            if not left:
                yield ()
            return
        for count in range(min(len(left), pipelines[0]) + 1):
            for own in combinations(left, count):
                others = tuple(index for index in left if index not in own)
                for behind in rest(others, pipelines[1:]):
                    yield (own, *behind)

    yield from rest(tuple(range(num_slow)), lengths)
