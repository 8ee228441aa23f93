"""The chain problem as an integer programme: a second exact answer, to check the solver against.

With one device for each stage the closed form of `heterps_envs.closed_form.formula` is a maximum of
linear functions of the stages' sums, and the integer programme has all of it: fill, round trips,
waits, both schedules, links, optimizer step, memory with micro-batches in flight, and device
counts. Stages hold what the rule says or, where they may hold more, all micro-batches: there must
be memory for those, as how many fit is not linear. Two more things are not linear and left out:
several replicas of a stage, and the objective `price`, which is a product. (With `use_exactly` the
price of the devices is fixed: the cheapest of the answers over all device counts is the optimum of
that objective, too.)

Slots count stages from the back, so a stage in slot s holds s + 1 micro-batches in flight. Binary
w[l, s, t]: layer l is in slot s, which is a device of class t. It takes minutes where the dynamic
programme takes milliseconds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_matrix

from heterps_agents.splits.milp import INFEASIBLE
from heterps_envs.arrays import Floats
from heterps_envs.closed_form.placement import PlacedStage, Placement
from heterps_envs.cost_tables import CostTables

# A sum of variables with their factors.
_Sum = list[tuple[int, float]]


class MilpChain(NamedTuple):
    """What HiGHS found.

    Attributes:
        placement: The stages, front to back; None where none was found.
        step_time_s: Closed-form step time as the programme sees it, up to a millionth of the time
            of everything on one device and over every link; inf without a placement.
        lower_bound_s: No placement with one device for each stage is faster; inf: there is none.
    """

    placement: Placement | None
    step_time_s: float
    lower_bound_s: float


def milp_chain(
    tables: CostTables, *, use_exactly: Sequence[int] | None = None, max_seconds: float = 60.0
) -> MilpChain:
    """The fastest placement with one device for each stage.

    Args:
        tables: Of the problem.
        use_exactly: (T,) devices of each class that must be used; by default any within the counts.
        max_seconds: HiGHS stops after this long and returns incumbent and bound.
    """
    model = _Model(tables, use_exactly)
    found = model.solve(max_seconds)
    if found.status == INFEASIBLE:
        return MilpChain(None, math.inf, math.inf)
    bound_s = 0.0 if found.mip_dual_bound is None else float(found.mip_dual_bound) * model.scale_s
    if found.x is None:
        return MilpChain(None, math.inf, bound_s)
    return MilpChain(model.placement(found.x), float(found.fun) * model.scale_s, bound_s)


class _Model:
    """Variables and rows; times are in units of `scale_s`, the time of everything on one device."""

    def __init__(self, tables: CostTables, use_exactly: Sequence[int] | None) -> None:
        self.tables = tables
        everything = tables.state_bytes + tables.num_micro_batches * tables.activation_bytes
        has_room = (everything.sum() <= tables.memory_bytes).all()
        assert tables.is_gpipe or tables.holds_by_rule or has_room, "how many fit is not linear"
        layers, classes = tables.num_layers, tables.num_classes
        self.num_slots = int(min(layers, tables.device_count.sum()))
        link_s = self._message_s(tables.latency_s.max(), tables.inverse_bandwidth_s_per_byte.max())
        work_s = tables.compute_s.max(axis=1).sum() + tables.optimizer_s.max(axis=1).sum()
        self.scale_s = float(work_s + link_s) or 1.0
        self.size = 0
        self.in_slot = self._new(layers, self.num_slots, classes)  # w[l, s, t]
        self.is_class = self._new(self.num_slots, classes)
        self.num_binary = self.size
        self.cut = self._new(layers, self.num_slots, classes, classes)
        self.behind, self.first_wait, self.last_wait = (self._new(self.num_slots) for _ in range(3))
        self.rows: list[tuple[_Sum, float, float]] = []
        self._assign(use_exactly)
        self._remember()
        for slot in range(self.num_slots):
            self._time(slot)

    def solve(self, max_seconds: float) -> Any:
        cost, integrality = np.zeros(self.size), np.zeros(self.size)
        cost[self.behind[-1]] = 1.0
        integrality[: self.num_binary] = 1
        upper = np.full(self.size, np.inf)
        upper[: self.num_binary] = 1.0
        entries = [
            (row, variable, factor)
            for row, (terms, _, _) in enumerate(self.rows)
            for variable, factor in terms
        ]
        row, column, value = zip(*entries, strict=True)
        matrix = coo_matrix((value, (row, column)), shape=(len(self.rows), self.size)).tocsr()
        lower, most = (np.array([entry[i] for entry in self.rows]) for i in (1, 2))
        return milp(
            cost,
            constraints=[LinearConstraint(matrix, lower, most)],
            integrality=integrality,
            bounds=Bounds(np.zeros(self.size), upper),
            options={"time_limit": max_seconds, "mip_rel_gap": 0.0},
        )

    def placement(self, values: Floats) -> Placement:
        chosen = values[self.in_slot].reshape(self.tables.num_layers, -1).argmax(axis=1)
        slot, kind = np.divmod(chosen, self.tables.num_classes)
        edges = [0, *(np.flatnonzero(np.diff(slot)) + 1).tolist(), len(slot)]
        return tuple(
            PlacedStage(first, stop - 1, int(kind[first])) for first, stop in pairwise(edges)
        )

    def _new(self, *shape: int) -> NDArray[np.int64]:
        count = math.prod(shape)
        self.size += count
        return np.arange(self.size - count, self.size).reshape(shape)

    def _at_least(self, left: _Sum, right: _Sum, constant: float = 0.0) -> None:
        """Adds left >= right + constant."""
        terms = left + [(variable, -factor) for variable, factor in right]
        self.rows.append((terms, constant, np.inf))

    def _message_s(self, latency_s: float, inverse_bandwidth: float) -> float:
        """All cuts with the given link, twice: more than any round trip over links."""
        tables = self.tables
        each = latency_s + tables.output_bytes * inverse_bandwidth
        return float(2.0 * each.sum() * (tables.num_micro_batches + 1))

    def _ones(self, variables: NDArray[np.int64], factor: float = 1.0) -> _Sum:
        return [(int(variable), factor) for variable in variables.ravel()]

    def _assign(self, use_exactly: Sequence[int] | None) -> None:
        """Every layer in one slot, slots from the front to the back, no slot skipped."""
        tables = self.tables
        for layer in range(tables.num_layers):
            self.rows.append((self._ones(self.in_slot[layer]), 1.0, 1.0))
            for slot in range(1, self.num_slots if layer else 0):
                before = self._ones(self.in_slot[layer - 1, slot:])
                self._at_least(before, self._ones(self.in_slot[layer, slot:]))
        for slot in range(self.num_slots):
            used = self._ones(self.is_class[slot])
            self.rows.append((used, 0.0, 1.0))
            self._at_least(self._ones(self.in_slot[:, slot]), used)
            if slot:
                self._at_least(self._ones(self.is_class[slot - 1]), used)
            for kind in range(tables.num_classes):
                for layer in range(tables.num_layers):
                    here = self._ones(self.in_slot[layer, slot, kind])
                    self._at_least(self._ones(self.is_class[slot, kind]), here)
        for kind, count in enumerate(tables.device_count.tolist()):
            least, most = (0, count) if use_exactly is None else (use_exactly[kind],) * 2
            self.rows.append((self._ones(self.is_class[:, kind]), least, most))

    def _in_flight(self, slot: int) -> int:
        """What there must be memory for."""
        share = self.tables.num_micro_batches
        return share if self.tables.is_gpipe else min(share, slot + 1)

    def _held(self, slot: int) -> int:
        return self._in_flight(slot) if self.tables.holds_by_rule else self.tables.num_micro_batches

    def _remember(self) -> None:
        """Memory of every slot."""
        tables = self.tables
        for slot in range(self.num_slots):
            needed = tables.state_bytes + self._in_flight(slot) * tables.activation_bytes
            for kind, capacity in enumerate(tables.memory_bytes):
                variables = self.in_slot[:, slot, kind].tolist()
                held = list(zip(variables, (needed / capacity).tolist(), strict=True))
                self._at_least(self._ones(self.is_class[slot, kind]), held)

    def _seconds(self, slot: int, seconds: Floats) -> _Sum:
        """Sum of (L, T) seconds over what is in the slot."""
        variables = self.in_slot[:, slot].ravel().tolist()
        return list(zip(variables, (seconds.ravel() / self.scale_s).tolist(), strict=True))

    def _link(self, slot: int, num_latencies: float, num_transfers: float) -> _Sum:
        """Latencies and transfers of messages over the cut behind a slot."""
        if slot == 0:
            return []
        tables = self.tables
        seconds = (
            num_latencies * tables.latency_s
            + num_transfers
            * tables.output_bytes[:, None, None]
            * tables.inverse_bandwidth_s_per_byte
        ) / self.scale_s
        return list(zip(self.cut[:, slot].ravel().tolist(), seconds.ravel().tolist(), strict=True))

    def _time(self, slot: int) -> None:
        """The closed form of the pipeline that begins with this slot, see `closed_form`."""
        tables, share = self.tables, self.tables.num_micro_batches
        compute = self._seconds(slot, tables.compute_s)
        optimizer = self._seconds(slot, tables.optimizer_s)
        behind: _Sum = [(int(self.behind[slot]), 1.0)]
        work = _times(compute, share)
        if slot == 0:
            self._at_least(behind, work + optimizer)
            return
        self._cuts(slot)
        message = self._link(slot, 2.0, 2.0)
        round_trip = message + [
            term
            for later in range(slot)
            for term in self._seconds(later, tables.compute_s) + self._link(later, 2.0, 2.0)
        ]
        held = self._held(slot)
        rounds = -(-share // held)
        waits: list[_Sum] = []
        for wait, seconds in (
            (self.first_wait, tables.forward_s),
            (self.last_wait, tables.backward_s),
        ):
            waits.append([(int(wait[slot]), 1.0)])
            hidden = _times(self._seconds(slot, seconds), -(held - 1))
            self._if_used(slot, waits[-1], round_trip + hidden)
        if share > held:
            self._at_least(behind, work + waits[0] + waits[1] + optimizer)
        else:
            for wait_terms in waits:
                self._at_least(behind, work + wait_terms + optimizer)
        self._if_used(slot, behind, _times(compute + round_trip, rounds) + optimizer, rounds)
        later_behind = [(int(self.behind[slot - 1]), 1.0)]
        self._at_least(behind, compute + message + later_behind)
        self._at_least(behind, compute + self._link(slot, 2.0, share + 1.0))

    def _if_used(self, slot: int, left: _Sum, right: _Sum, factor: float = 1.0) -> None:
        """Adds left >= right for a slot that holds layers; 1 is more than any round trip takes."""
        self._at_least(left, right + self._ones(self.is_class[slot], factor), -factor)

    def _cuts(self, slot: int) -> None:
        """A cut behind layer l: it is in this slot, the next layer in the slot behind."""
        for layer in range(self.tables.num_layers - 1):
            for kind in range(self.tables.num_classes):
                for other in range(self.tables.num_classes):
                    here = self._ones(self.in_slot[layer, slot, kind])
                    there = self._ones(self.in_slot[layer + 1, slot - 1, other])
                    cut = self._ones(self.cut[layer, slot, kind, other])
                    self._at_least(cut, here + there, -1.0)


def _times(terms: _Sum, factor: float) -> _Sum:
    return [(variable, value * factor) for variable, value in terms]
