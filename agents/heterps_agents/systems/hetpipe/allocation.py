"""Which devices are a virtual worker: node partition, equal distribution, hybrid distribution."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from heterps_agents.systems.devices import nodes_of
from heterps_envs.problem import Problem

# Where no more numbers of workers divide the devices of each type, others are looked at, too.
_FEW, MOST_UNEVEN = 2, 8


class Allocation(NamedTuple):
    """Virtual workers by a policy.

    Attributes:
        policy: `NP`, `ED` or `HD`.
        workers: Names of the devices of each.
    """

    policy: str
    workers: tuple[tuple[str, ...], ...]


def allocations(problem: Problem) -> list[Allocation]:
    """Those of all policies, each once."""
    types = _types(problem)
    found = [Allocation("NP", tuple(tuple(names) for names in nodes_of(problem)))]
    found += [Allocation("ED", _dealt(types, number)) for number in _numbers(types)]
    found += [Allocation("HD", workers) for workers in _hybrid(types)]
    # What two policies say alike is the first one's.
    once = {frozenset(map(frozenset, each.workers)): each for each in reversed(found)}
    return list(once.values())[::-1]


def _numbers(types: Sequence[Sequence[str]]) -> list[int]:
    """Of workers that have equally many of each type; some more where these are very few."""
    even = _divisors(math.gcd(*(len(names) for names in types)))
    most = min(sum(len(names) for names in types), MOST_UNEVEN)
    return even if len(even) > _FEW else sorted({*even, *range(1, most + 1)})


def _types(problem: Problem) -> list[list[str]]:
    """The devices of each type and memory, the fastest type first; those of a node together."""
    whole_s = problem.tables.compute_s.sum(axis=0)
    groups: dict[tuple[str, int], list[str]] = {}
    for device in problem.cluster.devices:
        groups.setdefault((device.type.name, device.memory_bytes), []).append(device.name)
    return sorted(groups.values(), key=lambda names: whole_s[problem.class_of[names[0]]])


def _divisors(whole: int) -> list[int]:
    return [number for number in range(1, whole + 1) if whole % number == 0]


def _dealt(types: Sequence[Sequence[str]], number: int) -> tuple[tuple[str, ...], ...]:
    """Workers that have equally many of each type, neighbours of it.

    Where that leaves devices of a type, the workers get one more in turn, over all types.
    """
    workers: list[list[str]] = [[] for _ in range(number)]
    turn = 0
    for names in types:
        each, more = divmod(len(names), number)
        lucky = {(turn + place) % number for place in range(more)}
        turn, taken = turn + more, 0
        for index, worker in enumerate(workers):
            size = each + (index in lucky)
            worker += names[taken : taken + size]
            taken += size
    return tuple(map(tuple, workers))


def _hybrid(types: Sequence[Sequence[str]]) -> Iterator[tuple[tuple[str, ...], ...]]:
    """Workers of two types each, the fastest with the slowest; all have equally many devices.

    The type in the middle of an odd number is alone.
    """
    pairs = [[types[index], types[-1 - index]] for index in range(len(types) // 2)]
    pairs += [[types[len(types) // 2]]] * (len(types) % 2)
    counts = [sum(len(names) for names in pair) for pair in pairs]
    for size in _divisors(math.gcd(*counts)):
        numbers = [count // size for count in counts]
        if all(
            len(names) % number == 0
            for pair, number in zip(pairs, numbers, strict=True)
            for names in pair
        ):
            yield tuple(
                worker
                for pair, number in zip(pairs, numbers, strict=True)
                for worker in _dealt(pair, number)
            )
