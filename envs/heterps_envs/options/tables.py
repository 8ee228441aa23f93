"""The cost tables with a column for each option."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from heterps_envs.arrays import Floats
from heterps_envs.cost_tables import CostTables, RingLinks, StageOptions
from heterps_envs.layer_costs.kept_memory import LayerMemory
from heterps_envs.layer_costs.memory_rule import MemoryRule, memory_rule
from heterps_envs.options.option import Memory, StageOption
from heterps_envs.problem import Problem


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
