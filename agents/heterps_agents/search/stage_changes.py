"""All small changes of a placement's stages, numbered: what `refine` tries."""

from __future__ import annotations

from typing import Any

from heterps_envs.closed_form.formula import MAX_REPLICAS
from heterps_envs.compiled import uncounted, uncounted_helper

# What `numbered_change` knows by name.
OTHER_OPTION, SWAP, SPLIT = 0, 1, 2


@uncounted_helper
def copy_stage(stages: Any, row: int, out: Any, place: int) -> None:
    """Writes one stage to another place."""
    for column in range(3):
        out[place, column] = stages[row, column]


@uncounted_helper
def copy_stages(stages: Any, count: int, out: Any) -> None:
    """Writes the first stages to another array."""
    for row in range(count):
        copy_stage(stages, row, out, row)


@uncounted_helper
def relocate(stages: Any, row: int, place: int) -> None:
    """Moves a stage with its layers to another place; those between go one place on or back.

    Behind slow links the order of stages is a tour, and this and `reverse` are its usual moves.
    """
    _as_lengths(stages, min(row, place), max(row, place))
    stop, option, replicas = stages[row, 0], stages[row, 1], stages[row, 2]
    step = 1 if row < place else -1
    for other in range(row, place, step):
        copy_stage(stages, other + step, stages, other)
    stages[place, 0], stages[place, 1], stages[place, 2] = stop, option, replicas
    _as_stops(stages, min(row, place), max(row, place))


@uncounted_helper
def reverse(stages: Any, first: int, last: int) -> None:
    """Turns the order of some stages round; each keeps its number of layers."""
    _as_lengths(stages, first, last)
    low, high = first, last
    while low < high:
        for column in range(3):
            kept = stages[low, column]
            stages[low, column] = stages[high, column]
            stages[high, column] = kept
        low, high = low + 1, high - 1
    _as_stops(stages, first, last)


@uncounted_helper
def exchange(stages: Any, row: int, other: int) -> None:
    """Two stages change places, each with its layers; `row` is in front."""
    _as_lengths(stages, row, other)
    for column in range(3):
        kept = stages[row, column]
        stages[row, column] = stages[other, column]
        stages[other, column] = kept
    _as_stops(stages, row, other)


@uncounted_helper
def hand_layers(stages: Any, row: int, other: int, layers: int) -> bool:
    """Gives layers to another stage: those between keep their numbers of layers.

    Returns:
        Whether both have a layer then.
    """
    if row < other:
        layers = -layers
    for between in range(min(row, other), max(row, other)):
        stages[between, 0] += layers
    start = stages[row - 1, 0] if row > 0 else 0
    return bool(stages[row, 0] > start)


@uncounted_helper
def _as_lengths(stages: Any, first: int, last: int) -> None:
    """Writes for some stages how many layers they have, where it said where they end."""
    for row in range(last, first - 1, -1):
        stages[row, 0] -= stages[row - 1, 0] if row > 0 else 0


@uncounted_helper
def _as_stops(stages: Any, first: int, last: int) -> None:
    """The other way round."""
    for row in range(first, last + 1):
        stages[row, 0] += stages[row - 1, 0] if row > 0 else 0


@uncounted
def num_changes(k: Any, count: int) -> int:
    """How many changes of `count` stages there are, those that make no sense included."""
    options: int = k.num_options
    return count * (5 * options + 4 + 4 * count)


@uncounted
def numbered_change(k: Any, count: int, what: int, row: int, number: int) -> int:
    """The number for `change_stages` of one of the changes of a kind.

    Args:
        k: `KernelTables`.
        count: Stages in use.
        what: `OTHER_OPTION`, `SWAP` or `SPLIT`.
        row: The stage, one of the two where they are swapped.
        number: Any, drawn: says which option, which other stage, which half and how many replicas.
    """
    if what == OTHER_OPTION:
        return int(number % k.num_options * count + row)
    if what == SWAP:
        other = number % count
        which = k.num_options + 2 + count + max(row, other)
        return int(which * count + min(row, other))
    which = k.num_options + 4 + 2 * count + number % (4 * k.num_options)
    return int(which * count + row)


@uncounted
def change_stages(k: Any, stages: Any, count: int, index: int, free: Any) -> int:
    """Changes the stages in one way, in place.

    In this order, each for every stage: another option; one replica more or less; a replica for
    another stage of the option; swapped with another stage; joined with the next stage, on the
    devices of either; split, with a replica of any option for either half; the same with all free
    devices of its class; moved to another place with its layers; all up to another one turned
    round.

    Args:
        k: `KernelTables`.
        stages: (L + 1, 3) int64, see `heterps_envs.closed_form.objective.read_stages`.
        count: Stages in use.
        index: 0 to `num_changes` - 1.
        free: (T,) int64 scratch.

    Returns:
        How many stages there are then; 0 where the change makes no sense.
    """
    for kind in range(k.num_classes):
        free[kind] = k.device_count[kind]
    for row in range(count):
        free[k.class_of_option[stages[row, 1]]] -= (
            stages[row, 2] * k.devices_of_option[stages[row, 1]]
        )
    row, which = index % count, index // count
    if which < k.num_options:
        return _other_option(k, stages, count, row, which, free)
    which -= k.num_options
    if which < 2:
        return _other_replicas(k, stages, count, row, 1 if which == 0 else -1, free)
    which -= 2
    if which < count:
        return _hand_over(stages, count, row, which)
    which -= count
    if which < count:
        return _swap(stages, count, row, which)
    which -= count
    if which < 2:
        return _join(stages, count, row, which == 0)
    which -= 2
    if which >= 4 * k.num_options:
        return _in_other_order(stages, count, row, which - 4 * k.num_options)
    kind, which = which % k.num_options, which // k.num_options
    room = free[k.class_of_option[kind]] // k.devices_of_option[kind]
    replicas = 1 if which < 2 else min(room, k.num_micro_batches, MAX_REPLICAS)
    if room < 1 or (which >= 2 and replicas == 1):
        return 0
    return _split(stages, count, row, kind, which % 2, replicas)


@uncounted_helper
def _other_option(k: Any, stages: Any, count: int, row: int, kind: int, free: Any) -> int:
    own, device_class = stages[row, 1], k.class_of_option[kind]
    room = free[device_class]
    if k.class_of_option[own] == device_class:
        room += stages[row, 2] * k.devices_of_option[own]
    room //= k.devices_of_option[kind]
    if kind == own or room <= 0:
        return 0
    stages[row, 1], stages[row, 2] = kind, min(stages[row, 2], room)
    return count


@uncounted_helper
def _other_replicas(k: Any, stages: Any, count: int, row: int, more: int, free: Any) -> int:
    replicas = stages[row, 2] + more
    most = min(k.num_micro_batches, MAX_REPLICAS)
    option = stages[row, 1]
    room = free[k.class_of_option[option]]
    if replicas < 1 or replicas > most or room < more * k.devices_of_option[option]:
        return 0
    stages[row, 2] = replicas
    return count


@uncounted_helper
def _hand_over(stages: Any, count: int, row: int, other: int) -> int:
    if other == row or stages[other, 1] != stages[row, 1] or stages[row, 2] == 1:
        return 0
    stages[row, 2] -= 1
    stages[other, 2] += 1
    return count


@uncounted_helper
def _swap(stages: Any, count: int, row: int, other: int) -> int:
    same = stages[other, 1] == stages[row, 1] and stages[other, 2] == stages[row, 2]
    if other <= row or same:
        return 0
    for column in (1, 2):
        swapped = stages[row, column]
        stages[row, column] = stages[other, column]
        stages[other, column] = swapped
    return count


@uncounted_helper
def _in_other_order(stages: Any, count: int, row: int, which: int) -> int:
    if which < count:
        if which in (row, row - 1):  # neighbours change places once
            return 0
        relocate(stages, row, which)
        return count
    if which - count < row + 2:
        return 0
    reverse(stages, row, which - count)
    return count


@uncounted_helper
def _join(stages: Any, count: int, row: int, on_own: bool) -> int:
    if row + 1 >= count:
        return 0
    if on_own:
        stages[row + 1, 1], stages[row + 1, 2] = stages[row, 1], stages[row, 2]
    for other in range(row, count - 1):
        copy_stage(stages, other + 1, stages, other)
    return count - 1


@uncounted_helper
def _split(stages: Any, count: int, row: int, kind: int, half: int, replicas: int) -> int:
    start = stages[row - 1, 0] if row > 0 else 0
    if stages[row, 0] - start < 2:
        return 0
    for other in range(count, row, -1):
        copy_stage(stages, other - 1, stages, other)
    stages[row, 0] = (start + stages[row, 0]) // 2
    stages[row + half, 1], stages[row + half, 2] = kind, replicas
    return count + 1
