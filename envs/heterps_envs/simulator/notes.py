"""Notes of an estimate: who shares cores, what hosts take, times of groups, what cannot run yet."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from itertools import pairwise
from operator import itemgetter

from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.documents.plan import Plan
from heterps_configs.documents.stage import Stage
from heterps_envs.links import measured_all_reduces
from heterps_envs.problem import Problem
from heterps_envs.schedule.plan_arrays import optimizer_slowdown_of, slowdown_of

# Degree, uneven shares, and whether a layer is whole: how a group holds its parameters.
_Held = tuple[int, tuple[float, ...], bool]


def simulation_notes(problem: Problem, plan: Plan) -> tuple[str, ...]:
    """One line for each node whose devices share cores, and one for each with host times."""
    on_node: dict[str, list[str]] = defaultdict(list)
    for name in plan.devices:
        device = problem.device_named[name]
        if device.type.emulation is None:
            on_node[device.node].append(name)
    notes, optimizer = [], problem.job.optimizer
    for node in problem.cluster.nodes:
        names, host = on_node[node.name], node.host
        factor = slowdown_of(host, len(names)) if names else 1.0
        tables = host.slowdown_together, host.optimizer_slowdown_together.get(optimizer)
        if len(names) > 1 and any(tables):
            step_factor = optimizer_slowdown_of(host, optimizer, len(names))
            notes.append(
                f"{', '.join(names)} share the cores of {node.name}: a pass takes {factor:.3g} "
                f"times as long while all {len(names)} compute, an optimizer step "
                f"{step_factor:.3g} times while all are in theirs"
            )
        if names and (host.action_s or host.send_s or host.receive_s or host.step_s):
            notes.append(
                f"the host of {', '.join(names)} takes {1e3 * host.action_s:.3g} ms for each pass, "
                f"{1e3 * host.send_s:.3g} ms for each message sent, "
                f"{1e3 * host.receive_s:.3g} ms for each received "
                f"and {1e3 * host.step_s:.3g} ms for each step beside the layers"
            )
    return tuple(notes)


def strategy_notes(problem: Problem, plan: Plan) -> tuple[str, ...]:
    """Where the times of tensor-parallel groups come from, and what of a plan cannot be run yet."""
    notes, scaled = [], dict[tuple[str, int, str], None]()
    for group in plan.device_groups:
        kinds, degree = {problem.class_of[name]: None for name in group}, len(group)
        if degree == 1:
            continue
        sources = problem.at_degree(degree).layer_times.sources
        types = dict.fromkeys(problem.classes[kind].type.name for kind in kinds)
        if any(sources[kind] == "scaled" for kind in kinds):
            measured = measured_all_reduces(problem.cluster, problem.classes, degree)
            is_known = all(measured[kind] is not None for kind in kinds)
            how = "as all-reduces were measured" if is_known else "by its link"
            scaled[" and ".join(types), degree, how] = None
        if len(kinds) > 1:
            notes.append(
                f"{', '.join(group)} are unlike: at each layer their group takes as long as the "
                "slowest of them with its share"
            )
    for name, degree, how in scaled:
        notes.append(
            f"groups of {degree} {name}: times measured on one device, scaled by a roofline of the "
            f"split layers, with sums over the group {how}"
        )
    cannot_run = not_run_yet(problem.profile, plan)
    if cannot_run is not None:
        notes.append(f"{cannot_run}; the plan can be simulated, and not run")
    return tuple(notes)


def can_run(problem: Problem, plan: Plan) -> bool:
    """Whether `not_run_yet` has nothing to say; quick for plans without groups."""
    has_groups = any(stage.degree > 1 for stage in plan.stages)
    return not has_groups or not_run_yet(problem.profile, plan) is None


def not_run_yet(profile: ModelProfile, plan: Plan) -> str | None:
    """Why a plan cannot be run yet, in one line; None: it can."""
    owner_of = {user: owner for owner, users in profile.tied_layers.items() for user in users}
    for owner, users in profile.tied_layers.items():
        reason = _tie_split_unlike(profile, plan, {owner, *users})
        if reason is not None:
            return reason
    if not profile.tied_layers and _hold_each_layer_alike(plan):
        return None
    # Hundreds of replicas are alike: of each layer and way to hold it, stages by their devices.
    holders: dict[int, dict[_Held, dict[tuple[str, ...], Stage]]] = defaultdict(dict)
    sharded = plan.sharded_layers
    for stage in plan.stages:
        degree, shares, whole = stage.split
        for layer in {*stage.layers, *(owner_of[own] for own in stage.layers if own in owner_of)}:
            using = {layer, *profile.tied_layers.get(layer, ())}
            held = degree, shares, not whole.isdisjoint(using)
            for other_held, others in holders[layer].items():
                if other_held == held:
                    continue
                found = _cannot_share(others, stage, is_sharded=not sharded.isdisjoint(using))
                if found is not None:
                    other, reason = found
                    return (
                        f"stages {other.name!r} and {stage.name!r} hold the same parameters "
                        f"({profile.layers[layer].name}) {reason}"
                    )
            holders[layer].setdefault(held, {}).setdefault(stage.devices, stage)
    return None


def _hold_each_layer_alike(plan: Plan) -> bool:
    """Whether stages with a layer in common are groups of one kind."""
    ways = sorted(
        {(each.first_layer, each.last_layer, each.split) for each in plan.stages},
        key=itemgetter(0, 1),
    )
    return all(front[1] < behind[0] for front, behind in pairwise(ways))


def _tie_split_unlike(profile: ModelProfile, plan: Plan, tied: set[int]) -> str | None:
    """Why a group cannot hold the parameters that layers share; None: it can."""
    layers = profile.layers
    for stage in plan.stages:
        own = {each for each in tied if each in stage.layers and layers[each].tensor_split}
        whole = own.intersection(stage.unsplit_layers)
        if whole and whole != own:
            kept, split = min(whole), min(own - whole)
            field = "whole_layers" if kept in stage.whole_layers else "batch_layers"
            return (
                f"stage {stage.name!r} keeps {layers[kept].name} whole ({field}: "
                f"{kept}) and splits {layers[split].name}, which has the same parameters; "
                f"add {split} to whole_layers"
            )
    return None


def _cannot_share(
    others: Mapping[tuple[str, ...], Stage], stage: Stage, *, is_sharded: bool
) -> tuple[Stage, str] | None:
    """A stage that holds the same parameters in another way and cannot, and why; None: all can.

    Stages that share a device share all of them, in the same order.
    """
    if stage.devices in others:
        return others[stage.devices], "with unlike shares on the same devices; that cannot be run"
    if is_sharded:
        other = next(iter(others.values()))
        return other, (
            f"in unlike groups, of {other.degree} and {stage.degree} devices, and share their "
            "optimizer state; running that is not supported yet"
        )
    return None
