"""Plans of blocks and lanes as numbers, for the compiled formula; what is in many plans, once."""

from __future__ import annotations

from collections.abc import Iterable
from struct import pack

import numpy as np

from heterps_agents.asymmetric.weave import Block, Group, Part, Weave
from heterps_envs.arrays import Flags, Floats, Integers
from heterps_envs.lanes.arrays import LaneTables
from heterps_envs.options import Memory, StageOption, option_tables
from heterps_envs.problem import Problem


class LaneCosts:
    """Of plans for one problem.

    Numbers are kept as bytes, as these are joined faster than arrays.

    Args:
        problem: What was asked.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        # Of a class of devices, how many each group has, and what is done with activations.
        self._columns: dict[tuple[int, int, Memory], int] = {}
        self._tables: LaneTables | None = None
        self._groups: dict[tuple[tuple[Group, ...], Memory], bytes] = {}
        self._parts: dict[tuple[Part, ...], bytes] = {}
        self._blocks: dict[Block, bytes] = {}
        self._sharded: dict[frozenset[int], Flags] = {}

    @property
    def tables(self) -> LaneTables:
        """What lanes take; asked after the numbers of a plan, which may make it larger."""
        if self._tables is None:
            self._tables = _tables(self._problem, self._columns)
        return self._tables

    def plan(self, weave: Weave) -> Integers:
        """A plan, see `heterps_envs.lanes.arrays`."""
        blocks, known = [], self._blocks
        for block in weave.blocks:
            numbers = known.get(block)
            if numbers is None:
                numbers = known[block] = self._block(block)
            blocks.append(numbers)
        return _array(blocks)

    def block(self, block: Block) -> Integers:
        """The same of a block alone."""
        return _array([self._block(block)])

    def sharded(self, layers: frozenset[int]) -> Flags:
        """(L,) whether each layer is among some."""
        if layers not in self._sharded:
            flags = np.zeros(self._problem.profile.num_layers, np.bool_)
            flags[list(layers)] = True
            self._sharded[layers] = flags
        return self._sharded[layers]

    def column(self, group: Group, memory: Memory) -> int:
        """Of the tables, for the devices of a group."""
        way = self._problem.class_of[group[0]], len(group), memory
        if way not in self._columns:
            self._columns[way], self._tables = len(self._columns), None
        return self._columns[way]

    def _block(self, block: Block) -> bytes:
        found = [pack("q", len(block))]
        for share, parts in block:
            if parts not in self._parts:
                self._parts[parts] = b"".join(map(self._part, parts))
            found += (pack("2q", share, len(parts)), self._parts[parts])
        return b"".join(found)

    def _part(self, part: Part) -> bytes:
        stop, groups, memory = part
        key = groups, memory
        if key not in self._groups:
            index = self._problem.links.index
            devices = [index[group[0]] for group in groups]
            column = self.column(groups[0], memory)
            self._groups[key] = pack(f"{2 + len(groups)}q", column, len(groups), *devices)
        return pack("q", stop) + self._groups[key]


def _array(numbers: Iterable[bytes]) -> Integers:
    # Kernels are called faster with arrays that can be written to.
    return np.frombuffer(bytearray().join(numbers), np.int64)


def _tables(problem: Problem, ways: Iterable[tuple[int, int, Memory]]) -> LaneTables:
    options = tuple(StageOption(kind, degree, memory, True) for kind, degree, memory in ways)
    found = [option_tables(problem, (option,)) for option in options]
    own = [each.stage_options for each in found]

    def prefix(columns: Iterable[Floats]) -> Floats:
        """(C, L + 1) sums."""
        sums = [np.cumsum(column[:, 0]) for column in columns]
        return np.pad(np.stack(sums), ((0, 0), (1, 0)))

    return LaneTables(
        forward_s=prefix(each.forward_s for each in found),
        backward_s=prefix(each.backward_s for each in found),
        optimizer_s=prefix(each.optimizer_s for each in found),
        state_bytes=prefix(each.state_bytes for each in own),
        sharded_bytes=prefix(each.sharded_bytes for each in own),
        kept_bytes=prefix(each.activation_bytes for each in own),
        gradient_bytes=prefix(each.gradient_bytes for each in own),
        room_bytes=np.array([float(each.memory_bytes[0]) for each in found]),
        output_bytes=np.ascontiguousarray(problem.tables.output_bytes, dtype=float),
        links=problem.links.by_node,
        is_gpipe=problem.tables.is_gpipe,
        is_open=not problem.tables.holds_by_rule,
    )
