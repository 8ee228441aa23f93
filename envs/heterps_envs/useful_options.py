"""Options that no placement needs: another one of the same class is nowhere worse.

One option beats another where no layer takes longer, moves more bytes or costs more, it takes no
more devices, its links are no slower, and it fits wherever the other one fits: because it holds no
more for its memory, or because its memory suffices for all layers at once. Then every stage can
change from the one to the other, and no plan by the closed form is worse for it. An option that has
room for no layer is left out as well. Sharing state is never a reason: the simulator knows that its
gathers wait for backward passes, and the closed form does not.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from heterps_envs.closed_form.formula import MAX_REPLICAS
from heterps_envs.closed_form.kernel_tables import ring_links
from heterps_envs.cost_tables import CostTables
from heterps_envs.options import StageOption, option_tables, options_of
from heterps_envs.problem import Problem

NO_ROOM = "has room for no layer"
HOLDS_LESS = "no layer is faster, smaller or cheaper"
NEVER_FULL = "no layer is faster or cheaper, and memory suffices without"


class DroppedOption(NamedTuple):
    """An option that planners leave out.

    Attributes:
        option: What is left out.
        by: The option that is nowhere worse; None where there is no room for any layer.
        why: In words.
    """

    option: StageOption
    by: StageOption | None
    why: str


class UsefulOptions(NamedTuple):
    """What is left to choose from.

    Attributes:
        options: In the order of `options_of`.
        tables: Cost tables of these.
        dropped: The others.
    """

    options: tuple[StageOption, ...]
    tables: CostTables
    dropped: tuple[DroppedOption, ...] = ()


def useful_options(problem: Problem) -> UsefulOptions:
    """The options that a problem's strategy allows, less those that no placement needs.

    Found once for each problem.

    Raises:
        HeterpsError: See `options_of`.
    """
    known = problem.derived.get(useful_options)
    if not isinstance(known, UsefulOptions):
        problem.derived[useful_options] = known = _useful_options(problem)
    return known


def _useful_options(problem: Problem) -> UsefulOptions:
    options = options_of(problem, problem.strategy)
    tables = option_tables(problem, options)
    found = dropped_columns(tables)
    # Where nothing has room for any layer, all stay: then what is missing can be said.
    if len(found) == len(options):
        return UsefulOptions(options, tables)
    kept = [index for index in range(len(options)) if index not in found]
    dropped = tuple(
        DroppedOption(options[index], None if by is None else options[by], why)
        for index, (by, why) in sorted(found.items())
    )
    return UsefulOptions(tuple(options[i] for i in kept), with_columns(tables, kept), dropped)


def with_columns(tables: CostTables, kept: list[int]) -> CostTables:
    """The tables with some of their options only."""
    if len(kept) == tables.num_options:
        return tables
    options = tables.stage_options
    return replace(
        tables.of_columns(kept),
        options=replace(
            options,
            class_of_option=options.class_of_option[kept],
            devices_of_option=options.devices_of_option[kept],
            state_bytes=options.state_bytes[:, kept],
            sharded_bytes=options.sharded_bytes[:, kept],
            shards_state=options.shards_state[kept],
            gradient_bytes=options.gradient_bytes[:, kept],
            activation_bytes=options.activation_bytes[:, kept],
        ),
    )


def without_dropped(tables: CostTables) -> CostTables:
    """The tables without the options that no placement needs."""
    dropped = dropped_columns(tables)
    kept = [index for index in range(tables.num_options) if index not in dropped]
    return with_columns(tables, kept) if kept else tables


def dropped_columns(tables: CostTables) -> dict[int, tuple[int | None, str]]:
    """For each option that no placement needs, the one that beats it, and why.

    The last ones go first: of equal options the first stays.
    """
    fit = _Fit(tables)
    found: dict[int, tuple[int | None, str]] = {
        int(index): (None, NO_ROOM) for index in np.flatnonzero(~fit.has_room.any(axis=0))
    }
    kinds = tables.stage_options.class_of_option
    for index in reversed(range(tables.num_options)):
        if index in found:
            continue
        left = [other for other in range(tables.num_options) if other not in found]
        for other in left:
            is_rival = other != index and kinds[other] == kinds[index]
            if is_rival and _is_no_worse(tables, other, index, left):
                why = fit.reason(other, index)
                if why is not None:
                    found[index] = other, why
                    break
    return found


def _is_no_worse(tables: CostTables, one: int, two: int, left: list[int]) -> bool:
    """Whether an option takes no more than another one of its class, memory aside."""
    options = tables.stage_options
    if options.devices_of_option[one] > options.devices_of_option[two]:
        return False
    # Shared state divides the optimizer's seconds by as many replicas as there may be.
    most = _most_replicas(tables, two) if options.shards_state[two] else 1
    if options.shards_state[one]:
        if not options.shards_state[two]:
            return False
        most = 1
    return (
        bool(tables.price_usd_per_hour[one] <= tables.price_usd_per_hour[two])
        and bool((tables.forward_s[:, one] <= tables.forward_s[:, two]).all())
        and bool((tables.backward_s[:, one] <= tables.backward_s[:, two]).all())
        and bool((tables.optimizer_s[:, one] <= tables.optimizer_s[:, two] / most).all())
        and bool((options.gradient_bytes[:, one] <= options.gradient_bytes[:, two]).all())
        and _has_no_slower_links(tables, one, two, left)
    )


def _has_no_slower_links(tables: CostTables, one: int, two: int, left: list[int]) -> bool:
    """With every option that is left, with its own replicas, and beside itself."""
    others = [index for index in left if index != two]
    for links in (tables.latency_s, tables.inverse_bandwidth_s_per_byte):
        if links[one, one] > links[two, two]:
            return False
        if (links[one, others] > links[two, others]).any():
            return False
        if (links[others, one] > links[others, two]).any():
            return False
    node_size, *rings = ring_links(tables)
    for ring in rings:
        if (ring[one] > ring[two]).any() or ring[one, 0] > ring[one, 1]:
            return False
    return bool(node_size[one] >= node_size[two])


def _most_replicas(tables: CostTables, option: int) -> int:
    most = min(tables.num_micro_batches, MAX_REPLICAS, int(tables.most_replicas[option]))
    return max(most, 1)


class _Fit:
    """Which options have room for what."""

    def __init__(self, tables: CostTables) -> None:
        options, self._tables = tables.stage_options, tables
        most = np.array([_most_replicas(tables, i) for i in range(tables.num_options)])
        # State falls with replicas, along a line in their inverse: its ends say it all.
        self._alone = options.state_bytes + options.sharded_bytes
        self._shared = options.state_bytes + options.sharded_bytes / most
        least = self._shared + options.activation_bytes
        enough = (least <= tables.memory_bytes) & (tables.most_replicas > 0)
        self.has_room = enough  # (L, O)
        held = tables.num_micro_batches
        if tables.holds_by_rule:
            held = min(held, int(tables.device_count.sum()))
        everything = (self._alone + held * options.activation_bytes).sum(axis=0)
        self._is_never_full = everything <= tables.memory_bytes

    def reason(self, one: int, two: int) -> str | None:
        """Why one option fits wherever another one fits; None where it may not."""
        held, memory = self._tables.stage_options.activation_bytes, self._tables.memory_bytes
        layers = self.has_room[:, two]
        if memory[one] > 0 and all(
            (values[layers, one] * memory[two] <= values[layers, two] * memory[one]).all()
            for values in (self._alone, self._shared, held)
        ):
            return HOLDS_LESS
        return NEVER_FULL if self._is_never_full[one] else None
