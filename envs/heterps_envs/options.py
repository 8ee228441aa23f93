"""Stage options: ways to carry out a stage on a class of devices, and their cost tables.

An option is a class, a tensor-parallel degree, what is done with activations (kept, computed again,
or offloaded to the host), and whether replicas divide the optimizer state. A strategy says which of
them a planner may choose. Without any, tables have one option for each class: one device that keeps
all.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product
from typing import Literal, NamedTuple

import numpy as np

from heterps_configs.documents.job import Strategy
from heterps_configs.documents.plan import Plan
from heterps_configs.errors import HeterpsError
from heterps_envs.arrays import Floats
from heterps_envs.cost_tables import CostTables, RingLinks, StageOptions
from heterps_envs.layer_costs.memory import LayerMemory
from heterps_envs.layer_costs.memory_rule import MemoryRule, memory_rule
from heterps_envs.layer_costs.tensor_parallel import split_at
from heterps_envs.problem import Problem

# A coded placement has eight bits for the option.
MAX_OPTIONS = 256
# What a stage does with its activations.
Memory = Literal["keep", "recompute", "offload"]
_ACTIONS: tuple[Memory, ...] = ("keep", "recompute", "offload")


class StageOption(NamedTuple):
    """One way to carry out a stage.

    Attributes:
        device_class: Index of the class.
        degree: Devices of one node of the class that split each layer.
        memory: Whether activations are kept, dropped and computed again, or kept by the host.
        shards_state: Whether replicas divide the optimizer state among them.
    """

    device_class: int
    degree: int = 1
    memory: Memory = "keep"
    shards_state: bool = False

    @property
    def order(self) -> tuple[bool, int, int, bool]:
        """Where it stands among others: one device that keeps all first."""
        way = self.degree, _ACTIONS.index(self.memory), self.shards_state
        return way != (1, 0, False), *way


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


def bounding_tables(problem: Problem) -> CostTables:
    """The tables that bounds are derived from: no plan that a strategy allows is below them.

    Where a strategy leaves options open, plans may come from elsewhere than placements: even ones
    that divide nodes otherwise, and those that fit by the simulator alone. So there is an option
    for every degree that some node has room for, links are the fastest, and a layer holds only what
    it holds in any stage: weights, optimizer state, what it saves beside the tensors at its cuts.

    Raises:
        HeterpsError: A strategy allows nothing: no layer is split at its degrees.
    """
    if problem.strategy.is_plain:
        return problem.bounding_tables
    view = problem.views[-1]
    options = _all_options(view, problem.strategy)
    tables = option_tables(view, options)
    assert tables.options is not None
    state, sharded, kept = (
        np.stack(columns, axis=1)
        for columns in zip(*(_least_bytes(view, option) for option in options), strict=True)
    )
    usable = [view.usable_bytes(view.classes[o.device_class].devices[0].name) for o in options]
    held = replace(tables.options, state_bytes=state, sharded_bytes=sharded, activation_bytes=kept)
    return replace(tables, memory_bytes=np.array(usable, dtype=float), options=held)


def _all_options(problem: Problem, strategy: Strategy) -> tuple[StageOption, ...]:
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


def _least_bytes(problem: Problem, option: StageOption) -> tuple[Floats, Floats, Floats]:
    """(L,) each: what a layer holds in any stage, what its replicas share, what a pass leaves."""
    own, job = problem.at_degree(option.degree), problem.job
    tied = own.tied_parameters
    weights = (own.parameters - tied) * job.weight_bytes_per_parameter
    moments = np.maximum(own.trained_parameters - tied, 0.0) * job.optimizer_bytes_per_parameter
    saved = own.layer_memory.own_bytes[:, option.device_class] * (option.memory == "keep")
    if option.shards_state:
        return weights, moments, saved
    return weights + moments, np.zeros_like(moments), saved


def option_tables(problem: Problem, options: tuple[StageOption, ...]) -> CostTables:
    """The cost tables with a column for each option; found once for each problem and options.

    What an option holds is never below what the simulator counts for a stage, but for what the rule
    leaves out (`heterps_envs.layer_costs.memory_rule`) and groups beside smaller ones (`_rule`). It
    is above it by what sums over layers cannot say: messages and ends of stages are the largest or
    those of every layer, and of what is held for one layer at a time the whole model's largest
    counts. On shipped models that is 0.13 GB (median), several where messages are large.
    """
    key = option_tables, options
    known = problem.derived.get(key)
    if not isinstance(known, CostTables):
        problem.derived[key] = known = _option_tables(problem, options)
    return known


def _option_tables(problem: Problem, options: tuple[StageOption, ...]) -> CostTables:
    blocks = {key: _block(problem, *key) for key in {(o[1:]) for o in options}}
    columns = [_column(blocks[option[1:]], option.device_class) for option in options]
    plain, kinds = problem.tables, [option.device_class for option in options]
    degrees = np.array([option.degree for option in options])
    # Copies of a message follow each other on a sender's link: there, and back; on average.
    more = np.maximum(degrees[:, None], degrees)
    copies = (-(-more // np.minimum(degrees[:, None], degrees)) + 1) / 2
    both = np.ix_(kinds, kinds)

    def stacked(name: str) -> Floats:
        return np.stack([getattr(column, name) for column in columns], axis=1)

    return replace(
        plain,
        forward_s=stacked("forward_s"),
        backward_s=stacked("backward_s"),
        optimizer_s=stacked("optimizer_s"),
        memory_bytes=np.array([column.memory_bytes for column in columns]),
        price_usd_per_hour=plain.price_usd_per_hour[kinds] * degrees,
        latency_s=plain.latency_s[both],
        inverse_bandwidth_s_per_byte=plain.inverse_bandwidth_s_per_byte[both] * copies,
        rings=_rings(plain, kinds, degrees),
        options=StageOptions(
            class_of_option=np.array(kinds),
            devices_of_option=degrees,
            state_bytes=stacked("state_bytes"),
            sharded_bytes=stacked("sharded_bytes"),
            shards_state=np.array([option.shards_state for option in options]),
            gradient_bytes=stacked("gradient_bytes"),
            activation_bytes=stacked("activation_bytes"),
        ),
    )


class _Block(NamedTuple):
    """Of one device of a group, for all classes: (L, T), or (L,) where they are alike.

    `memory_bytes` is (T,).
    """

    forward_s: Floats
    backward_s: Floats
    optimizer_s: Floats
    state_bytes: Floats
    sharded_bytes: Floats
    gradient_bytes: Floats
    activation_bytes: Floats
    memory_bytes: Floats


def _column(block: _Block, kind: int) -> _Block:
    """That of one class: (L,) each, and a number."""
    *rest, memory_bytes = block
    columns = [array if array.ndim == 1 else array[:, kind] for array in rest]
    return _Block._make([*columns, memory_bytes[kind]])


def _block(problem: Problem, degree: int, action: Memory, shards_state: bool) -> _Block:
    own, job = problem.at_degree(degree), problem.job
    times, memory = own.layer_times, own.layer_memory
    forward_s, backward_s = times.forward_s, times.backward_s
    rule, besides_bytes = _rule(problem, degree, action), np.zeros(len(own.classes))
    if action == "recompute":
        # Most that one layer saves when it is computed again, beside what entered it.
        besides_bytes = (memory.own_bytes + memory.saved_out_bytes[:, None]).max(axis=0)
        backward_s = backward_s + forward_s
    if action == "offload":
        # The layer that is computed, and one that is on its way.
        besides_bytes = own.offload.passing_bytes.max(axis=0)
        forward_s = forward_s + own.offload.forward_s
        backward_s = backward_s + own.offload.backward_s
    shared = own.trained_parameters * (job.optimizer_bytes_per_parameter if shards_state else 0.0)
    usable = np.array([own.usable_bytes(entry.devices[0].name) for entry in own.classes], float)
    return _Block(
        forward_s=forward_s,
        backward_s=backward_s,
        optimizer_s=times.optimizer_s,
        state_bytes=np.maximum(own.state_bytes(rule) - shared, 0.0),
        sharded_bytes=shared,
        gradient_bytes=own.gradient_bytes,
        activation_bytes=rule.activation_bytes,
        # Below 0 where the rest alone is too much: then not even a layer without bytes fits.
        memory_bytes=usable - rule.reserve_bytes - besides_bytes,
    )


def _rule(problem: Problem, degree: int, action: Memory) -> MemoryRule:
    """What counts as memory; found once for all classes."""
    own, key = problem.at_degree(degree), (_rule, degree, action)
    if degree == 1 and action == "keep":
        return own.memory_rule
    known = problem.derived.get(key)
    if not isinstance(known, MemoryRule):
        # As many stages as there are groups: where others are smaller, more is held, up to a GB of
        # large messages, and the simulator says so. To reserve that would take it from all plans.
        groups = np.maximum(problem.tables.device_count // degree, 1)
        kept = _kept(own.layer_memory, action)
        problem.derived[key] = known = memory_rule(kept, own.gradient_bytes, problem.job, groups)
    return known


def _kept(memory: LayerMemory, action: Memory) -> LayerMemory:
    if action == "keep":
        return memory
    return memory.computed_again() if action == "recompute" else memory.offloaded()


def _rings(plain: CostTables, kinds: list[int], degrees: np.ndarray) -> RingLinks | None:
    """Groups on one node have its links, as long as it holds them all."""
    if plain.rings is None:
        return None
    rings = plain.rings.of_classes(kinds)
    return rings._replace(node_size=rings.node_size // degrees)
