"""The options that a strategy allows, on the nodes that there are."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import product

from heterps_configs.documents.job import Strategy
from heterps_configs.documents.plan import Plan
from heterps_configs.errors import HeterpsError
from heterps_envs.layer_costs.tensor_parallel import split_at
from heterps_envs.options.option import MAX_OPTIONS, Memory, StageOption
from heterps_envs.problem import Problem


def options_of(problem: Problem, strategy: Strategy) -> tuple[StageOption, ...]:
    """The options that a strategy allows; those of one device that keeps all come first.

    Raises:
        HeterpsError: No node has as many devices as a degree asks for, no class may offload, or
            there are more than `MAX_OPTIONS`.
    """
    linked = _have_host_links(problem)
    if strategy.offload == "auto" and not any(linked):
        raise HeterpsError(
            f"offload: no device type of {problem.cluster.name!r} has host_bandwidth_bytes_per_s, "
            "a link to its host; allowed without one: never"
        )
    allowed = [
        StageOption(kind, degree, action, is_shared)
        for action, is_shared in product(_actions(strategy), _sharing(strategy))
        for kind in range(len(problem.classes))
        if action != "offload" or linked[kind]
        for degree in _degrees(problem, kind, strategy)
    ]
    if not allowed:
        raise HeterpsError(_no_groups(problem, strategy))
    if len(allowed) > MAX_OPTIONS:
        raise HeterpsError(
            f"{len(allowed)} ways to carry out a stage on {len(problem.classes)} device classes; "
            f"at most {MAX_OPTIONS} are supported: allow fewer tensor-parallel degrees"
        )
    # Stable: by what they are, then by class.
    return tuple(sorted(allowed, key=lambda option: option.order))


def options_of_any_node(problem: Problem, strategy: Strategy) -> tuple[StageOption, ...]:
    """Those of all degrees that any node of a class has room for."""
    linked = _have_host_links(problem)
    allowed = tuple(
        StageOption(kind, degree, action, is_shared)
        for action, is_shared in product(_actions(strategy), _sharing(strategy))
        for degree, kind in all_groups(problem)
        if action != "offload" or linked[kind]
    )
    if not allowed:
        raise HeterpsError(_no_groups(problem, strategy))
    return allowed


def all_groups(problem: Problem) -> list[tuple[int, int]]:
    """Degrees that a strategy allows and some node of a class has room for, with those classes."""
    most = {
        kind: max(Counter(device.node for device in entry.devices).values())
        for kind, entry in enumerate(problem.classes)
    }
    asked = problem.strategy.tensor_parallel or range(1, max(most.values()) + 1)
    layers = problem.profile.layers
    return [
        (degree, kind)
        for degree in asked
        if degree == 1 or any(split_at(layer, degree) for layer in layers)
        for kind in most
        if degree <= most[kind]
    ]


def some_groups(problem: Problem) -> list[tuple[int, int]]:
    """The same, of which there is one at least.

    Raises:
        HeterpsError: A strategy allows none.
    """
    found = all_groups(problem)
    if not found:
        raise HeterpsError(_no_groups(problem, problem.strategy))
    return found


def has_unlike_groups(problem: Problem, plan: Plan) -> bool:
    """Whether the devices of a group are of several classes."""
    return any(
        len({problem.class_of[name] for name in stage.devices}) > 1
        for stage in plan.stages
        if stage.degree > 1
    )


def allows_unlike_groups(problem: Problem) -> bool:
    """Whether devices of several classes may be a group: of one node, and of a degree allowed."""
    classes = defaultdict[str, list[int]](list)
    for kind, entry in enumerate(problem.classes):
        for device in entry.devices:
            classes[device.node].append(kind)
    mixed = [len(kinds) for kinds in classes.values() if len(set(kinds)) > 1]
    asked = problem.strategy.tensor_parallel or range(2, max(mixed, default=1) + 1)
    layers = problem.profile.layers
    return any(
        1 < degree <= max(mixed, default=0) and any(split_at(layer, degree) for layer in layers)
        for degree in asked
    )


def keeps_to(plan: Plan, strategy: Strategy) -> bool:
    """Whether all stages of a plan are carried out in ways that a strategy allows."""
    degrees = strategy.tensor_parallel
    kept, again = strategy.recompute != "full", strategy.recompute != "never"
    return (strategy.shard_state == "auto" or not plan.sharded_state) and all(
        (not degrees or stage.degree in degrees)
        and not stage.uneven_shares
        and not stage.unsplit_layers
        and (strategy.offload == "auto" or not stage.offloaded_layers)
        and (kept or len(stage.recompute_layers) == len(stage.layers))
        and (again or not stage.recompute_layers)
        for stage in plan.stages
    )


def _no_groups(problem: Problem, strategy: Strategy) -> str:
    """Why a strategy allows nothing: no node has the devices, or no layer is split among them."""
    degrees = strategy.tensor_parallel
    text = ", ".join(map(str, degrees))
    layers = problem.profile.layers
    if 1 in degrees or any(split_at(layer, each) for layer in layers for each in degrees):
        cluster = problem.cluster.name
        return f"tensor_parallel: no node of {cluster!r} holds groups of {text} equal devices"
    return f"tensor_parallel: no layer of {problem.profile.name!r} is split over groups of {text}"


def _actions(strategy: Strategy) -> list[Memory]:
    found: list[Memory] = [] if strategy.recompute == "full" else ["keep"]
    found += [] if strategy.recompute == "never" else ["recompute"]
    return found + (["offload"] if strategy.offload == "auto" else [])


def _sharing(strategy: Strategy) -> tuple[bool, ...]:
    return (False, True) if strategy.shard_state == "auto" else (False,)


def _have_host_links(problem: Problem) -> list[bool]:
    return [entry.type.host_bandwidth_bytes_per_s is not None for entry in problem.classes]


def _degrees(problem: Problem, kind: int, strategy: Strategy) -> list[int]:
    """Degrees of which each node of a class holds whole groups, and that split some layer."""
    nodes = Counter(device.node for device in problem.classes[kind].devices)
    most = min(nodes.values())
    asked = strategy.tensor_parallel or tuple(2**i for i in range(most.bit_length()))
    return [
        degree
        for degree in sorted(asked)
        if all(count % degree == 0 for count in nodes.values())
        and (degree == 1 or any(split_at(layer, degree) for layer in problem.profile.layers))
    ]
