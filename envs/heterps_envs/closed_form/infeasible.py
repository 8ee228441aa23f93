"""Why a problem has no plan: which limit of memory or throughput rules all of them out."""

from __future__ import annotations

import math

import numpy as np

from heterps_configs.units import bytes_text
from heterps_envs.arrays import Floats
from heterps_envs.closed_form.bounds import layer_bound_s, lower_bound
from heterps_envs.closed_form.islands import no_island_holds_it
from heterps_envs.closed_form.layer_needs import least_held, least_layer_bytes
from heterps_envs.closed_form.memory_bounds import class_memory_bytes
from heterps_envs.closed_form.memory_search import is_searchable, missing_bytes, most_covered
from heterps_envs.closed_form.objective import MISSES_FLOOR
from heterps_envs.closed_form.stage_formula import in_flight
from heterps_envs.cost_tables import CostTables
from heterps_envs.options import bounding_tables, option_tables, options_of
from heterps_envs.problem import Problem

_NO_LIMIT = "no plan was found, although no single limit rules one out"
_NO_ISLAND = "no devices that are linked with each other hold the model"


def explain_infeasible(problem: Problem) -> str:
    """Why no plan was found: the limit that is missed, where, and by how much.

    In this order: a layer that fits on no device; more state than memory in all; a stage for which
    no device is left; the same of all devices that are linked with each other; a throughput floor
    above what any plan can reach. Where the devices of all classes have at most
    `memory_search.MAX_STATES` combinations, a stage is named if and only if no placement fits;
    elsewhere by filling the largest devices first.
    """
    if not problem.strategy.is_plain:
        return _with_options(problem)
    tables = problem.tables
    need = least_layer_bytes(tables)
    return (
        _layer_too_large(problem, tables, need)
        or _too_much_in_all(problem, tables, need)
        or _stage_too_large(problem)
        or _on_no_island(problem, tables)
        or _floor_too_high(problem, problem.bounding_tables)
        or _too_slow(problem, problem.bounding_tables)
        or f"{_NO_LIMIT}{_unlinked(problem)}; allow the planner more"
    )


def _with_options(problem: Problem) -> str:
    """The same of all ways to carry out a stage that the strategy allows."""
    tables = bounding_tables(problem)
    need = least_layer_bytes(tables)
    return (
        _layer_too_large(problem, tables, need)
        or _too_much_in_all(problem, tables, need)
        or _on_no_island(problem, tables)
        or _on_no_island_as_counted(problem)
        or _floor_too_high(problem, tables)
        or _too_slow(problem, tables)
        or f"{_NO_LIMIT} with the allowed tensor-parallel degrees, recompute, offload and state "
        f"sharding{_unlinked(problem)}; allow the planner more"
    )


def _on_no_island(problem: Problem, tables: CostTables) -> str | None:
    return _NO_ISLAND if no_island_holds_it(problem, tables) else None


def _on_no_island_as_counted(problem: Problem) -> str | None:
    """The same by the rule of planners, which is never below what a plan takes."""
    view = problem.views[-1]
    reason = _on_no_island(problem, option_tables(view, options_of(view, problem.strategy)))
    return None if reason is None else f"{reason}, as planners count memory"


def _unlinked(problem: Problem) -> str:
    """What leaves fewer plans than memory and the floor do."""
    if not problem.cluster.lacks_links:
        return ""
    return f"; some devices of {problem.cluster.name!r} have no link to each other"


def _layer_too_large(problem: Problem, tables: CostTables, need: Floats) -> str | None:
    missing = need - tables.memory_bytes
    worst = int(missing.min(axis=1).argmax())
    best = int(missing[worst].argmin())
    if missing[worst, best] <= 0:
        return None
    options, view = tables.stage_options, problem if tables.options is None else problem.views[-1]
    held = least_held(tables)[best] * options.activation_bytes[worst, best]
    state, degree = need[worst, best] - held, int(options.devices_of_option[best])
    who = f"each of a group of {degree}" if degree > 1 else "it"
    return (
        f"layer {worst} ({problem.profile.layers[worst].name}) fits on no device: {who} needs "
        f"{bytes_text(math.ceil(need[worst, best]))} (state {bytes_text(state)}, the rest "
        f"activations), {bytes_text(math.ceil(missing[worst, best]))} more than a "
        f"{view.classes[options.class_of_option[best]].name} has"
    )


def _too_much_in_all(problem: Problem, tables: CostTables, need: Floats) -> str | None:
    total = (need * tables.stage_options.devices_of_option).min(axis=1).sum()
    memory = float(tables.device_count @ class_memory_bytes(tables))
    if total <= memory:
        return None
    return (
        f"the model needs at least {bytes_text(total)}, {bytes_text(total - memory)} more than "
        f"the {int(tables.device_count.sum())} devices of {problem.cluster.name!r} have together"
    )


def _stage_too_large(problem: Problem) -> str | None:
    tables = problem.tables
    if not is_searchable(tables):
        return _left_over(problem)
    covered = most_covered(tables)
    if covered.first_layer == 0:
        return None
    last = covered.first_layer - 1
    layers = problem.profile.layers
    return (
        f"the stage of the layers 0..{last} ({layers[0].name} .. {layers[last].name}) fits on no "
        f"device: the layers behind it fill {covered.devices} of the "
        f"{int(tables.device_count.sum())} devices, and no other cuts leave fewer layers over; "
        f"every device would need {bytes_text(missing_bytes(tables))} more"
    )


def _left_over(problem: Problem) -> str | None:
    """Fills the largest devices first, from the back, and reports the layers that are left over."""
    tables = problem.tables
    if tables.num_options > tables.num_classes:
        return None
    free = [
        index
        for index in np.argsort(-tables.memory_bytes, kind="stable")
        for _ in range(tables.device_count[index])
    ]
    stop, behind = tables.num_layers, 0
    for kind in free:
        start, room = stop, tables.memory_bytes[kind]
        held = in_flight(tables.num_micro_batches, tables.is_gpipe, 1, behind)
        while start > 0:
            room -= tables.state_bytes[start - 1] + held * tables.activation_bytes[start - 1]
            if room < 0:
                break
            start -= 1
        if start < stop:
            stop, behind = start, behind + 1
        if stop == 0:
            return None
    held = in_flight(tables.num_micro_batches, tables.is_gpipe, 1, behind)
    left = tables.state_bytes[:stop].sum() + held * tables.activation_bytes[:stop].sum()
    first, last = problem.profile.layers[0].name, problem.profile.layers[stop - 1].name
    return (
        f"the stage of the layers 0..{stop - 1} ({first} .. {last}) fits on no device: the layers "
        f"behind it fill {behind} of the {len(free)} devices, and no device has room for the "
        f"{bytes_text(left)} that it needs ({held} micro-batches in flight)"
    )


def _too_slow(problem: Problem, tables: CostTables) -> str | None:
    least_s = lower_bound(tables)
    if least_s < MISSES_FLOOR:
        return None
    if problem.cluster.lacks_links:
        return _NO_ISLAND
    if math.isinf(least_s):
        return (
            "the layers do not fit into the memory of all devices together, each of them in the "
            "way in which it takes least, as planners count it"
        )
    return (
        f"a step takes {least_s:.4g} s at least; nothing is planned for steps of more than "
        f"{MISSES_FLOOR:g} s"
    )


def _floor_too_high(problem: Problem, tables: CostTables) -> str | None:
    floor = problem.job.min_throughput_samples_per_s
    if floor is None:
        return None
    batch = problem.job.global_batch_size
    each, together = layer_bound_s(tables), lower_bound(tables)
    slowest = int(each.argmax())
    name = problem.profile.layers[slowest].name
    reachable = batch / max(together, 1e-30)
    text = (
        f"the throughput floor of {floor:g} samples/s is out of reach: no plan on "
        f"{problem.cluster.name!r} can exceed {reachable:.4g} samples/s"
        if reachable < floor
        else f"no plan found reaches the throughput floor of {floor:g} samples/s (the bound for "
        f"all plans is {reachable:.4g} samples/s)"
    )
    return (
        f"{text}; the stage with layer {slowest} ({name}) limits it most: that layer alone allows "
        f"{batch / max(each[slowest], 1e-30):.4g} samples/s at best"
    )
