"""The compiled half of Tangram: what even plans of slices take, and which of them are dominated."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from heterps_envs.closed_form.stage_formula import stage_after_option_s, stage_state_bytes
from heterps_envs.compiled import uncounted, uncounted_helper

# What is known of a plan of a slice, all better when smaller: seconds of a micro-batch's way
# through it and back; seconds of its slowest stage or link for all other micro-batches; seconds
# after the last pass; micro-batches of its busiest replica; groups of devices; and how many such
# groups behind it, below zero, it has memory for.
FILL, STEADY, END, SHARE, GROUPS, ROOM = range(6)
NUM_COSTS = 6


@uncounted
def stage_starts(first: int, stop: int, counted: Any, before: Any, starts: Any) -> bool:
    """Cuts layers evenly; whether there are as many layers that count as stages.

    Args:
        first: Of the layers.
        stop: Behind the last.
        counted: (C,) layers of which stages have equal numbers, the last ones one more.
        before: (L + 1,) of them, how many are in front of a layer.
        starts: (S + 1,) where each stage begins, written; and `stop`.
    """
    num_stages = len(starts) - 1
    number = before[stop] - before[first]
    if num_stages > 1 and number < num_stages:
        return False
    least, more = number // num_stages, number % num_stages
    at = before[first]
    starts[0], starts[num_stages] = first, stop
    for stage in range(1, num_stages):
        at += least + (1 if stage - 1 >= num_stages - more else 0)
        starts[stage] = counted[at]
    return True


@uncounted_helper
def even_plan_costs(k: Any, option: int, replicas: int, starts: Any, costs: Any) -> bool:
    """Writes what an even plan takes; whether it has memory for itself.

    Args:
        k: `KernelTables`, with a column for each option.
        option: Of all its stages.
        replicas: Of each stage.
        starts: (S + 1,) see `stage_starts`.
        costs: (NUM_COSTS,) written.
    """
    num_stages = len(starts) - 1
    share = (k.num_micro_batches + replicas - 1) // replicas
    fits = True
    fill, steady, end, most_behind = 0.0, 0.0, 0.0, k.device_count.sum()
    for stage in range(num_stages):
        start, stop = starts[stage], starts[stage + 1]
        passes = k.compute_prefix_s[stop, option] - k.compute_prefix_s[start, option]
        fill += passes
        steady = max(steady, (share - 1) * passes)
        end = max(end, stage_after_option_s(k, start, stop, option, replicas))
        if stage + 1 < num_stages:
            transfer = k.output_bytes[stop - 1] * k.inverse_bandwidth_s_per_byte[option, option]
            fill += 2.0 * (k.latency_s[option, option] + transfer)
            steady = max(steady, (share - 1) * transfer)
        room = k.memory_bytes[option] - stage_state_bytes(k, start, stop, option, replicas)
        kept = k.activation_prefix_bytes[stop, option] - k.activation_prefix_bytes[start, option]
        if room < share * kept or room < 0.0:
            if k.is_gpipe or room < kept:
                return False
            # It holds ceil((replicas + groups behind) / replicas) micro-batches.
            behind = replicas * (int(room / kept) - 1) - replicas * (num_stages - 1 - stage)
            most_behind = min(most_behind, behind)
    costs[FILL], costs[STEADY], costs[END] = fill, steady, end
    costs[SHARE], costs[GROUPS], costs[ROOM] = share, replicas * num_stages, -most_behind
    if most_behind < 0:
        fits = False
    return fits


@uncounted
def all_plan_costs(k: Any, tables: Any, slices: Any, starts: Any, costs: Any, fits: Any) -> None:
    """Every even plan of some devices, for every slice.

    Args:
        k: `KernelTables`.
        tables: (counted, before, plans): see `stage_starts`; (P, 3) option, stages and replicas.
        slices: (N, 2) first layer and the one behind the last.
        starts: (S + 1,) room for the deepest plan.
        costs: (N, P, NUM_COSTS) written.
        fits: (N, P) written.
    """
    counted, before, plans = tables
    for row in range(len(slices)):
        for plan in range(len(plans)):
            own = starts[: plans[plan, 1] + 1]
            fits[row, plan] = stage_starts(
                slices[row, 0], slices[row, 1], counted, before, own
            ) and even_plan_costs(k, plans[plan, 0], plans[plan, 2], own, costs[row, plan])


@uncounted
def keep_undominated(costs: Any, order: Any, group: Any, kept: Any, keeps: Any) -> None:
    """Of each group, drops what another one is at least as good as, in everything.

    Args:
        costs: (N, K) all better when smaller.
        order: (N,) by group, then by the first cost: what comes later dominates nothing in front,
            but for equal first costs.
        group: (N,)
        kept: (N,) room for indices.
        keeps: (N,) written.
    """
    num_kept = 0
    for place in range(len(order)):
        index = order[place]
        if place > 0 and group[index] != group[order[place - 1]]:
            num_kept = 0
        keeps[index] = True
        for other in range(num_kept):
            is_worse = True
            for cost in range(costs.shape[1]):
                if costs[index, cost] < costs[kept[other], cost]:
                    is_worse = False
                    break
            if is_worse:
                keeps[index] = False
                break
        if keeps[index]:
            kept[num_kept] = index
            num_kept += 1


@uncounted
def least_covers(slices: Any, is_sum: bool, least: Any) -> None:
    """The least sum, or maximum, over slices that cover all in front of each cut.

    Args:
        slices: (T, G + 1, G + 1) of each island, first cut and end cut; inf: there is none.
        is_sum: Or else the maximum.
        least: (2^T, G + 1) written: by the islands that may be used, one slice each.
    """
    num_islands, num_cuts = slices.shape[0], slices.shape[1]
    least[:] = math.inf
    least[:, 0] = 0.0
    for used in range(1, len(least)):
        for island in range(num_islands):
            if not used >> island & 1:
                continue
            front = used ^ (1 << island)
            for end in range(1, num_cuts):
                for first in range(end):
                    before, own = least[front, first], slices[island, first, end]
                    found = before + own if is_sum else max(before, own)
                    if found < least[used, end]:
                        least[used, end] = found


@uncounted
def join(
    front: Any,
    built: Any,
    between: Any,
    bounds: Any,
    limit_s: float,
    found: Any,
    costs: Any,
) -> int:
    """Plans of an island in front of what is built, that have memory and may end within a limit.

    Args:
        front: (offsets, first_cut, costs) of `PartialPlans`; the offsets of the island.
        built: (cut, costs) of what is built: fill, steady, end, groups.
        between: (latency_s, transfer_s) of a message to the island behind: one for all; (G + 1,)
            by its cut.
        bounds: (levels, least_fill_s, above_s, least_end_s) see `bounds.Bounds`; by the level, if
            there is one, and by the cut.
        limit_s: Of a step.
        found: (N, 3) written: cut in front, plan, and place among what is built.
        costs: (N, 5) written: as those of what is built; and what a step takes at least.

    Returns:
        How many there are.
    """
    offsets, first_cut, plan_costs = front
    built_cut, built_costs = built
    latency_s, transfers_s = between
    levels, least_fill_s, above_s, least_end_s = bounds
    count = 0
    for at in range(len(built_cut)):
        transfer_s = transfers_s[built_cut[at]]
        message_s = latency_s + transfer_s
        for plan in range(offsets[built_cut[at]], offsets[built_cut[at] + 1]):
            if built_costs[at, 3] > -plan_costs[plan, ROOM]:
                continue
            fill = plan_costs[plan, FILL] + built_costs[at, 0] + 2 * message_s
            steady = max(plan_costs[plan, STEADY], built_costs[at, 1])
            steady = max(steady, (plan_costs[plan, SHARE] - 1) * transfer_s)
            end = max(plan_costs[plan, END], built_costs[at, 2])
            cut = first_cut[plan]
            # What is built sets the level, or what is left is slower than that.
            level = np.searchsorted(levels, steady, "right") - 1
            least_s = min(least_fill_s[level, cut] + steady, above_s[level + 1, cut])
            least_s = least_s + fill + max(least_end_s[cut], end)
            if least_s < limit_s:
                found[count, 0], found[count, 1], found[count, 2] = cut, plan, at
                costs[count, 0], costs[count, 1], costs[count, 2] = fill, steady, end
                costs[count, 3] = plan_costs[plan, GROUPS] + built_costs[at, 3]
                costs[count, 4] = least_s
                count += 1
    return count
