"""Lower bounds of the largest load of any split of an operator graph, contiguous or not.

Two arguments, both free of symmetry among equal devices:

* Some device holds group g. The least load of an accelerator that holds g is a shortest path
  through `heterps_agents.splits.border_states`; the largest such load over all groups is a bound.
  So is the load of g with all its nets whose members take more memory than an accelerator has.
* Prices. Give every group a value. If k accelerators, each with a load of at most T, can hold at
  most k W(T) of value, and the CPUs l C(T), and together that is less than there is, then every
  split has a load above T. Good values come from a cutting-plane method (the dual of a
  Dantzig-Wolfe decomposition): a linear programme proposes values near the best known ones (a box
  step), and the most valuable set at these values becomes a new cut.

The second argument leaves memory out: with less memory no load gets smaller, so it stays valid.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import csr_matrix

from heterps_agents.splits.best_sets import BestSet, best_set
from heterps_agents.splits.border_states import BorderStates, border_states
from heterps_agents.splits.groups import GroupGraph
from heterps_agents.splits.search import Devices, loads_of
from heterps_envs.arrays import Floats
from heterps_envs.compiled import checked

NUM_CELLS, MAX_CELLS = 1000, 16_000
MAX_ROUNDS = 150
# Cuts that limit no proposal for so many rounds are forgotten.
MAX_IDLE = 15
# Sizes are shares of all value, which is the same for all values that are tried.
FIRST_BOX, MAX_BOX, BOX_GROWTH, BOX_SHRINKAGE = 0.3, 2.0, 1.5, 0.6
SERIOUS, GOOD = 0.02, 0.3
# How far towards a proposal the values go: all the way they swing from side to side.
STEP = 0.3
SETS_PER_ROUND = 12
TOLERANCE = 1e-6
ROUNDING = 1e-9
# Bounds by single groups and by averages are stated this much too low, so that re-checks need not
# tell equal loads apart.
SLACK = 1e-7


class Refutation(NamedTuple):
    """Values that prove that every split has a load above a limit; see the module's docstring.

    Attributes:
        limit_s: The limit.
        value: (G,) of the groups.
        cpu_worth: A CPU holds at most this value.
    """

    limit_s: float
    value: Floats
    cpu_worth: float


class _Reach(NamedTuple):
    """Most value that all devices can hold.

    Attributes:
        total: That value.
        cpu_worth: What a CPU holds of it, at most.
        is_coarse: Sets were found that exceed the limit, by rounding.
    """

    total: float
    cpu_worth: float
    is_coarse: bool


class _Cut:
    """A set of groups that one device may hold: its value is a bound from below.

    Attributes:
        chosen: (G,) the set.
        load_s: Its load on the device.
        idle_rounds: Proposals in a row that it did not limit.
    """

    def __init__(self, chosen: NDArray[np.bool_], load_s: float) -> None:
        self.chosen, self.load_s, self.idle_rounds = chosen, load_s, 0


class SplitBound:
    """Finds out which loads no split can keep to; what it learns at one load helps at the next.

    `refutation` is the last proof that succeeded. `may_still_refute`: the last attempt that failed
    ran out of rounds; another one goes on with the sets that it found.

    Args:
        graph: The groups.
        devices: What they are put on.
        states: Of the graph, where they are known already.
    """

    def __init__(
        self, graph: GroupGraph, devices: Devices, states: BorderStates | None = None
    ) -> None:
        self.graph = graph
        self.devices = devices
        self.states = states or border_states(graph)
        self._cpu_states = border_states(
            graph._replace(
                net_s=np.zeros(0),
                member_start=np.zeros(1, np.int64),
                members=np.zeros(0, np.int64),
                net_start=np.zeros(graph.num_groups + 1, np.int64),
                nets=np.zeros(0, np.int64),
            )
        )
        finite = np.where(np.isfinite(graph.accelerator_s), graph.accelerator_s, graph.cpu_s)
        self._total = float(finite.sum())
        self._value = finite
        self.refutation: Refutation | None = None
        self.may_still_refute = False
        self._cuts: tuple[list[_Cut], list[_Cut]] = ([], [])

    def at_once(self) -> float:
        """The bound by single groups, and by the average load without communication; seconds."""
        graph, devices, order = self.graph, self.devices, self.states.order
        alone, least = np.empty(graph.num_groups), np.empty(graph.num_groups)
        _least_loads(self.states, graph.accelerator_s[order], least)
        alone[order] = least
        alone = np.maximum(alone, graph.accelerator_s + self._always_cut_s())
        if devices.num_cpus:
            alone = np.minimum(alone, graph.cpu_s)
        # Every group takes a share of its device: 1 / its seconds there, for each second of load.
        seconds = graph.cpu_s if devices.num_cpus else np.inf
        fastest = np.minimum(graph.accelerator_s, seconds)
        average = fastest.sum() / (devices.num_accelerators + devices.num_cpus)
        bound_s = float(max(alone.max(), average))
        limit_s = bound_s * (1 - SLACK)
        if average >= alone.max():
            self.refutation = Refutation(limit_s, fastest, limit_s if devices.num_cpus else 0.0)
        else:
            only = np.zeros(graph.num_groups)
            only[np.argmax(alone)] = 1.0
            self.refutation = Refutation(limit_s, only, 0.0)
        return bound_s

    def _always_cut_s(self) -> Floats:
        """(G,) seconds of each group's nets whose members no accelerator has the memory for."""
        graph = self.graph
        size = np.diff(graph.member_start)
        net = np.repeat(np.arange(graph.num_nets), size)
        held = np.bincount(net, weights=graph.memory_bytes[graph.members], minlength=len(size))
        seconds = np.where(held > self.devices.memory_bytes, graph.net_s, 0.0)[net]
        paid = np.bincount(graph.members, weights=seconds, minlength=graph.num_groups).astype(float)
        return np.asarray(paid)

    def add(self, sets: NDArray[np.bool_], is_cpu: bool = False) -> None:
        """Makes sets of groups known that a device may hold."""
        for chosen in sets:
            if is_cpu:
                load_s = float(self.graph.cpu_s[chosen].sum())
            else:
                elsewhere = np.where(chosen, 0, 1).astype(np.int64)
                load_s = float(loads_of(self.graph, Devices(1, 1, np.inf), elsewhere)[0])
            self._cuts[is_cpu].append(_Cut(chosen, load_s))

    def refutes(self, limit_s: float, is_over: Callable[[], bool]) -> bool:
        """Whether values were found that prove that every split has a load above `limit_s`.

        Args:
            limit_s: Seconds.
            is_over: Asked once a round; True gives up.
        """
        self.may_still_refute = False
        center, total = self._value, self._total
        num_cells, box = NUM_CELLS, FIRST_BOX * total / self.graph.num_groups
        at_center = self._reach(center, limit_s, num_cells)
        for _ in range(MAX_ROUNDS):
            reached = at_center.total
            if reached < total * (1 - ROUNDING):
                self._value = center
                self.refutation = Refutation(limit_s, center, at_center.cpu_worth)
                return True
            if is_over():
                return False
            proposal, model = self._propose(center, box, limit_s)
            if model >= total * (1 - TOLERANCE):
                is_inside = bool((np.abs(proposal - center) < box * (1 - TOLERANCE)).all())
                if is_inside or box > MAX_BOX * total:
                    return False  # no values refute it
                box *= 2
                continue
            value = center + STEP * (proposal - center)
            at_value = self._reach(value, limit_s, num_cells)
            found = at_value.total
            if at_value.is_coarse:
                if num_cells >= MAX_CELLS:
                    return False
                num_cells *= 2
            if reached - found > SERIOUS * (reached - model):
                if reached - found > GOOD * (reached - model):
                    box *= BOX_GROWTH
                center, at_center = value, at_value
            elif found - reached > reached - model:
                box *= BOX_SHRINKAGE
        self._value, self.may_still_refute = center, True
        return False

    def _propose(self, center: Floats, box: float, limit_s: float) -> tuple[Floats, float]:
        """Values in the box around `center` at which the known sets hold the least.

        Returns:
            The values, and what all devices hold at them if there were only the known sets.
        """
        groups, devices = len(center), self.devices
        used: list[_Cut] = []
        for is_cpu in (False, True):
            self._cuts[is_cpu][:] = [c for c in self._cuts[is_cpu] if c.idle_rounds < MAX_IDLE]
            used += [c for c in self._cuts[is_cpu] if c.load_s <= limit_s * (1 + ROUNDING)]
            if not is_cpu:
                num_accelerator_cuts = len(used)
        cuts = np.zeros((len(used), groups + 2))
        cuts[:, :groups] = np.array([cut.chosen for cut in used]).reshape(len(used), groups)
        cuts[:num_accelerator_cuts, groups] = -1.0
        cuts[num_accelerator_cuts:, groups + 1] = -1.0
        cost = np.zeros(groups + 2)
        cost[groups:] = devices.num_accelerators, devices.num_cpus
        found = linprog(
            cost,
            A_ub=csr_matrix(cuts) if len(cuts) else None,
            b_ub=np.zeros(len(cuts)) if len(cuts) else None,
            A_eq=np.concatenate([np.ones(groups), np.zeros(2)])[None],
            b_eq=[self._total],
            bounds=[(value - box, value + box) for value in center] + [(0, None)] * 2,
            method="highs",
        )
        assert found.status == 0, found.message
        for cut, slack in zip(used, found.slack, strict=True):
            cut.idle_rounds = cut.idle_rounds + 1 if slack > TOLERANCE * self._total else 0
        return found.x[:groups], float(found.fun)

    def _reach(self, value: Floats, limit_s: float, num_cells: int) -> _Reach:
        """Most value that all devices can hold.

        Args:
            value: (G,) of the groups.
            limit_s: Load allowed.
            num_cells: See `best_set`.
        """
        tolerance = TOLERANCE * self._total / (self.devices.num_accelerators + 1)
        reached, cpu_worth, is_coarse = 0.0, 0.0, False
        for is_cpu, count in enumerate((self.devices.num_accelerators, self.devices.num_cpus)):
            if count == 0:
                continue
            cuts = self._cuts[is_cpu]
            known = max(
                (float(value[c.chosen].sum()) for c in cuts if c.load_s <= limit_s), default=0
            )
            best: BestSet = best_set(
                self._cpu_states if is_cpu else self.states,
                value,
                self.graph.cpu_s if is_cpu else self.graph.accelerator_s,
                limit_s,
                max(known, 0.0),
                tolerance,
                num_cells,
                SETS_PER_ROUND,
            )
            reached += count * best.upper
            cpu_worth = best.upper
            num_before = len(cuts)
            self.add(best.sets, bool(is_cpu))
            new = cuts[num_before:]
            is_coarse |= bool(new) and all(cut.load_s > limit_s for cut in new)
        return _Reach(reached, cpu_worth if self.devices.num_cpus else 0.0, is_coarse)


@checked
def _least_loads(s: Any, seconds: Any, least: Any) -> None:
    """Least load of an accelerator that holds each group, in the order of the layers."""
    groups = len(seconds)
    behind = np.full(len(s.next_state) + 1, np.inf)
    ahead = np.full(len(s.next_state) + 1, np.inf)
    behind[s.first[groups]] = 0.0
    for layer in range(groups - 1, -1, -1):
        for state in range(s.first[layer], s.first[layer + 1]):
            out = behind[s.next_state[state, 0]] + s.in_s[state, 0]
            taken = behind[s.next_state[state, 1]] + s.in_s[state, 1] + seconds[layer]
            behind[state] = min(out, taken)
    ahead[0] = 0.0
    for layer in range(groups):
        least[layer] = np.inf
        for state in range(s.first[layer], s.first[layer + 1]):
            out, taken = s.next_state[state, 0], s.next_state[state, 1]
            with_it = ahead[state] + s.in_s[state, 1] + seconds[layer]
            least[layer] = min(least[layer], with_it + behind[taken])
            ahead[out] = min(ahead[out], ahead[state] + s.in_s[state, 0])
            ahead[taken] = min(ahead[taken], with_it)
