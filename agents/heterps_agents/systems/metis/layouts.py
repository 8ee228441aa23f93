"""Which devices are a stage: orders of the device types, cut into groups of powers of two.

There are more of them than can be looked at. As published, groups are about as large as their mean
(`LEAST_SIZE`), and of many groups equal neighbours move together (`LONGEST`). Decided here, so that
an answer takes seconds: at most `MOST_ORDERS` orders of types and `MOST_LAYOUTS` layouts, the same
number for each order and number of stages; where there are more, a seeded sample of them.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate, permutations
from math import factorial
from typing import NamedTuple

# The smallest group over the mean size; what moves alone; orders of types; all together.
LEAST_SIZE, LONGEST, MOST_ORDERS, MOST_LAYOUTS = 0.5, 6, 24, 2000

Sizes = tuple[int, ...]


class Layout(NamedTuple):
    """Stages from the front: the order of all devices, and where each stage's begin and end."""

    order: int
    stops: tuple[int, ...]


def type_orders(types: Sequence[Sequence[str]], seed: int) -> list[tuple[str, ...]]:
    """All devices, type after type, for every order of the types, or a sample of them.

    Args:
        types: Names of the devices of each.
        seed: Of the sample.
    """
    if factorial(len(types)) <= MOST_ORDERS:
        orders = list(permutations(types))
    else:
        draw = random.Random(seed)
        orders = [tuple(draw.sample(types, len(types))) for _ in range(MOST_ORDERS)]
    return [tuple(name for own in order for name in own) for order in orders]


def powers_of_two(total: int, number: int, least: float) -> Iterator[Sizes]:
    """So many powers of two that sum up to `total`, none below `least`, none below the one before.

    Args:
        total: Devices.
        number: Of groups.
        least: Size.
    """
    if number == 0:
        if total == 0:
            yield ()
        return
    size = 1
    while size * number <= total:
        if size >= least:
            for behind in powers_of_two(total - size, number - 1, size):
                yield (size, *behind)
        size *= 2


def arrangements(sizes: Sizes) -> list[Sizes]:
    """Orders of sizes that differ; where there are many, equal ones move in blocks."""
    counts = Counter(sizes)
    blocks = dict(counts)
    while sum(blocks.values()) > LONGEST and max(blocks.values()) > 1:
        largest = max(blocks, key=lambda size: blocks[size])
        blocks[largest] = (blocks[largest] + 1) // 2
    parts: list[Sizes] = []
    for size, number in blocks.items():
        ends = [counts[size] * (index + 1) // number for index in range(number)]
        parts += [(size,) * (end - start) for start, end in zip([0, *ends], ends, strict=False)]
    # Told apart by number: parts are long.
    distinct = list(dict.fromkeys(parts))
    orders = dict.fromkeys(permutations([distinct.index(part) for part in parts]))
    return list(
        dict.fromkeys(tuple(size for i in order for size in distinct[i]) for order in orders)
    )


def has_layouts(num_devices: int, num_layers: int) -> bool:
    """Whether there is any layout of so many devices in at most so many stages."""
    numbers = range(1, min(num_devices, num_layers) + 1)
    return any(True for number in numbers for _ in _sizes(num_devices, number))


def _sizes(num_devices: int, number: int) -> Iterator[Sizes]:
    return powers_of_two(num_devices, number, LEAST_SIZE * num_devices / number)


def layouts(num_devices: int, num_layers: int, num_orders: int, seed: int) -> list[Layout]:
    """The layouts that are looked at, those of few stages first.

    Args:
        num_devices: All of them are used.
        num_layers: A stage has one at least.
        num_orders: Of the devices.
        seed: Of samples.
    """
    by_number = []
    for number in range(1, min(num_devices, num_layers) + 1):
        found = [
            arranged for sizes in _sizes(num_devices, number) for arranged in arrangements(sizes)
        ]
        if found:
            by_number.append(found)
    if not by_number:
        return []
    most = max(1, MOST_LAYOUTS // (num_orders * len(by_number)))
    draw = random.Random(seed)
    return [
        Layout(order, tuple(accumulate(sizes)))
        for found in by_number
        for order in range(num_orders)
        for sizes in (found if len(found) <= most else draw.sample(found, most))
    ]
