"""Which devices a planner need not look at: those whose memory holds no layer of the model.

And those beside which no device holds enough of it: what planners keep free on a device
(`MemoryRule`) grows with the devices that there are.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from itertools import combinations

import numpy as np

from heterps_configs.units import bytes_text
from heterps_envs.closed_form.fewer_devices import without_devices
from heterps_envs.closed_form.islands import may_hold
from heterps_envs.closed_form.layer_needs import layers_that_fit
from heterps_envs.closed_form.stage_formula import in_flight
from heterps_envs.cost_tables import CostTables
from heterps_envs.device_classes import DeviceClass
from heterps_envs.problem import Problem

# All sets of so many device classes are tried; of more, only those of the largest memory.
MOST_CLASSES = 6


def on_usable_devices(problem: Problem) -> Problem:
    """The problem without devices that are of no use; a warning names what is left out.

    Every planner that goes by the rule of memory begins with this. Where what `where_layers_fit`
    leaves cannot hold the model, fewer devices are taken that can, the fastest of all such. Where
    none can all stay: what is missing is then said of the whole cluster.
    """
    left, useless = _without_useless(problem)
    if _holds_the_model(left.bounding_tables):
        _warn_of(useless)
        return left
    fewer = _fastest_that_hold(problem)
    if fewer is None:
        _warn_of(useless)
        return left
    gone = [name for name in problem.device_named if name not in fewer.device_named]
    warnings.warn(
        f"{len(gone)} of {len(problem.device_named)} devices left out ({_few(gone)}): the more "
        "there are, the more each keeps free for messages, and the model has no room then",
        stacklevel=2,
    )
    return fewer


def where_layers_fit(problem: Problem) -> Problem:
    """The problem without device classes that hold no layer; a warning names what is left out.

    For planners that ask the simulator for memory, and not the rule. Classes go one by one, those
    that lack most first, as each that goes leaves the others more room. Where no class holds a
    layer all stay.
    """
    left, useless = _without_useless(problem)
    _warn_of(useless)
    return left


def _without_useless(problem: Problem) -> tuple[Problem, list[DeviceClass]]:
    """What is left, and the classes that are not; none where all would go."""
    left, useless = problem, list[DeviceClass]()
    while (worst := _useless_class(left)) is not None:
        if len(left.classes) == 1:
            return problem, []
        useless.append(worst)
        left = without_devices(left, [device.name for device in worst.devices])
    return left, useless


def _warn_of(useless: list[DeviceClass]) -> None:
    for entry in useless:
        warnings.warn(
            f"{entry.count} {entry.name} left out: no layer fits in what a device of "
            f"{bytes_text(entry.devices[0].memory_bytes)} has beside its buffers",
            stacklevel=3,
        )


def _few(names: list[str]) -> str:
    return ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")


def _useless_class(problem: Problem) -> DeviceClass | None:
    """Of the classes that hold no layer the one that lacks most; whatever the file's order."""
    tables = problem.tables
    fits = layers_that_fit(tables).any(axis=0) & (tables.memory_bytes > 0)
    lacking = [
        (room, entry.count, entry.name, entry)
        for room, entry in zip(problem.bytes_beside_reserve.tolist(), problem.classes, strict=True)
    ]
    useless = [entry for entry, holds in zip(lacking, fits, strict=True) if not holds]
    return min(useless, key=lambda entry: entry[:3])[3] if useless else None


def _holds_the_model(tables: CostTables) -> bool:
    """Whether devices may have room for all layers; a quick look is mostly enough to say so."""
    return _are_filled(tables) or may_hold(tables, tables.device_count)


def _are_filled(tables: CostTables) -> bool:
    """Whether all layers fit one after the other, a stage on each device, the roomiest first."""
    num_devices = int(tables.device_count.sum())
    held = in_flight(tables.num_micro_batches, tables.is_gpipe, 1, num_devices - 1)
    need = tables.state_bytes + held * tables.activation_bytes
    ends = np.concatenate([[0.0], np.cumsum(need)])
    first = 0
    for memory in np.sort(np.repeat(tables.memory_bytes, tables.device_count))[::-1]:
        first = int(np.searchsorted(ends, ends[first] + memory, side="right")) - 1
        if first >= tables.num_layers:
            return True
    return False


def _fastest_that_hold(problem: Problem) -> Problem | None:
    """The problem on the fastest devices that may hold the model, where fewer leave it room."""
    tables = problem.tables
    per_s = 1 / np.maximum(tables.compute_s.sum(axis=0), np.finfo(float).tiny)
    speed = {name: float(per_s[kind]) for name, kind in problem.class_of.items()}
    state_bytes = float(tables.state_bytes.sum())
    usable = {name: problem.usable_bytes(name) for name in problem.device_named}
    if tables.state_bytes.max() > max(usable.values()):
        return None
    sets = sorted(_sets(problem), key=lambda names: (-sum(map(speed.__getitem__, names)), names))
    for kept in sets:
        if sum(usable[name] for name in kept) < state_bytes:
            continue
        fewer = without_devices(problem, problem.device_named.keys() - set(kept))
        if _holds_the_model(fewer.bounding_tables):
            return fewer
    return None


def _sets(problem: Problem) -> Iterator[tuple[str, ...]]:
    """Some sets of devices: whole classes, and a half, a quarter, ... of each class alone."""
    roomiest = sorted(
        problem.classes,
        key=lambda each: (-problem.usable_bytes(each.devices[0].name), each.count, each.name),
    )
    many = len(roomiest) > MOST_CLASSES
    for size in range(1, len(roomiest)):
        for chosen in [roomiest[:size]] if many else combinations(roomiest, size):
            yield tuple(sorted(device.name for entry in chosen for device in entry.devices))
    for entry in roomiest:
        names = sorted(device.name for device in entry.devices)
        while len(names) > 1:
            names = names[: len(names) // 2]
            yield tuple(names)
