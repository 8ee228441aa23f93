"""Program and shares together, to the optimum: a mixed-integer programme for HiGHS.

The program is a path through states and layers. What flows along it is 1 in all and a share for
each device, so that an instruction that is not taken has no share: its seconds are bounded by its
own shares alone, without any large constant. Within a segment shares flow on from instruction to
instruction; between segments they begin anew. What is left for branching is little: relaxed, a
solution is a mixture of paths, each with shares of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_matrix

from heterps_agents.systems.hap.alternation import Choice, alternate, with_best_shares
from heterps_agents.systems.hap.chain import (
    END_STATES,
    START_STATES,
    Chain,
    Instruction,
    State,
)
from heterps_configs.errors import InfeasibleError

# Tells the places before and behind the collectives at a border apart.
_Vertex = tuple[int, bool, State]


# Layers times devices: up to here program and shares are chosen together, to the optimum.
MAX_TOGETHER = 256


class _Edge(NamedTuple):
    tail: _Vertex
    head: _Vertex
    instruction: Instruction | None


class Together(NamedTuple):
    """What was found, and whether it is the optimum."""

    choice: Choice
    is_proven: bool


def best_choice(chain: Chain) -> Choice:
    """Program and shares: the optimum of a chain that is not too long, else what turns find.

    Raises:
        InfeasibleError: No program leads from the data to the loss, or none that was met fits.
    """
    if len(chain.speeds) * len(chain.layers) <= MAX_TOGETHER:
        return best_together(chain).choice
    return alternate(chain)


def best_together(chain: Chain, max_seconds: float = math.inf) -> Together:
    """The program and the shares with the least seconds; memory counts for the shares alone.

    Args:
        chain: What there is to choose.
        max_seconds: HiGHS stops after so long; the answer is never worse than `alternate`'s.

    Raises:
        InfeasibleError: No program leads from the data to the loss, or none that was met fits.
    """
    met = alternate(chain)
    edges = _edges(chain)
    variables = _Variables(edges, chain)
    found = milp(
        variables.cost,
        constraints=_constraints(variables, edges, chain),
        integrality=variables.integrality,
        bounds=Bounds(0, np.where(variables.integrality > 0, 1, np.inf)),
        options={"mip_rel_gap": 1e-9, "time_limit": max_seconds},
    )
    if found.x is None:
        return Together(met, is_proven=False)
    taken = [e for e, value in zip(edges, found.x[: len(edges)], strict=True) if value > 0.5]
    taken.sort(key=lambda edge: edge.tail[:2])
    program = tuple(edge.instruction for edge in taken if edge.instruction is not None)
    try:
        own = with_best_shares(program, chain)
    except InfeasibleError:
        return Together(met, is_proven=False)
    return Together(min(own, met, key=lambda choice: choice.seconds), found.status == 0)


def _edges(chain: Chain) -> list[_Edge]:
    edges: list[_Edge] = []
    for place, (border, stays) in enumerate(zip(chain.borders, chain.stays, strict=True)):
        edges += [_Edge((place, False, s), (place, True, s), None) for s in stays]
        edges += [_Edge((place, False, e.before), (place, True, e.after), e) for e in border]
        if place < len(chain.layers):
            edges += [
                _Edge((place, True, e.before), (place + 1, False, e.after), e)
                for e in chain.layers[place]
            ]
    return edges


class _Variables:
    """Columns: for each edge whether it is taken, then n shares; then seconds of every term."""

    def __init__(self, edges: Sequence[_Edge], chain: Chain) -> None:
        self.num_edges, self.n = len(edges), len(chain.speeds)
        every = [
            (index, term)
            for index, edge in enumerate(edges)
            if edge.instruction
            for term in edge.instruction.terms
        ]
        self.terms = [(index, term) for index, term in every if not term.is_constant]
        first = self.num_edges * (1 + self.n)
        self.size = first + len(self.terms)
        largest = max((max(*t.fixed, *t.per_share) for _, t in every), default=0.0)
        self.unit_s = largest or 1.0
        self.cost = np.zeros(self.size)
        self.cost[first:] = 1.0
        for index, term in every:
            if term.is_constant:
                self.cost[index] += term.fixed[0] / self.unit_s
        self.integrality = np.zeros(self.size)
        self.integrality[: self.num_edges] = 1

    def share(self, edge: int, device: int) -> int:
        """Column of a device's share along an edge."""
        return self.num_edges + edge * self.n + device

    def seconds(self, term: int) -> int:
        """Column of the seconds of a term."""
        return self.num_edges * (1 + self.n) + term


class _Rows:
    def __init__(self, size: int) -> None:
        self.size = size
        self.low: list[float] = []
        self.high: list[float] = []
        self._at: list[tuple[int, int, float]] = []

    def add(self, entries: Sequence[tuple[int, float]], low: float, high: float) -> None:
        self._at += [(len(self.low), column, value) for column, value in entries]
        self.low.append(low)
        self.high.append(high)

    def constraint(self) -> LinearConstraint:
        rows, columns, values = zip(*self._at, strict=True)
        matrix = coo_matrix((values, (rows, columns)), (len(self.low), self.size)).tocsr()
        return LinearConstraint(matrix, np.array(self.low), np.array(self.high))


def _constraints(variables: _Variables, edges: Sequence[_Edge], chain: Chain) -> LinearConstraint:
    rows, n = _Rows(variables.size), variables.n
    for index in range(len(edges)):
        rows.add([(index, -1.0), *((variables.share(index, j), 1.0) for j in range(n))], 0, 0)
    for column, (index, term) in enumerate(variables.terms):
        for j in range(n):
            parts = [
                (index, term.fixed[j] / variables.unit_s),
                (variables.share(index, j), term.per_share[j] / variables.unit_s),
                (variables.seconds(column), -1.0),
            ]
            rows.add(parts, -np.inf, 0)
    _flows(rows, variables, edges, chain)
    return rows.constraint()


def _flows(rows: _Rows, variables: _Variables, edges: Sequence[_Edge], chain: Chain) -> None:
    """One path from a start to an end, with the shares of its segment all along."""
    into: dict[_Vertex, list[int]] = {}
    out: dict[_Vertex, list[int]] = {}
    for index, edge in enumerate(edges):
        out.setdefault(edge.tail, []).append(index)
        into.setdefault(edge.head, []).append(index)
    last = len(chain.layers)
    segment_of = [chain.layers[0][0].segment, *(layer[0].segment for layer in chain.layers)]
    behind = [*segment_of[1:], segment_of[-1]]
    starts = [i for s in START_STATES for i in out.get((0, False, s), [])]
    rows.add([(index, 1.0) for index in starts], 1, 1)
    for vertex in dict.fromkeys([*into, *out]):
        place, is_behind, state = vertex
        is_start = (place, is_behind) == (0, False)
        is_end = (place, is_behind) == (last, True)
        if (is_start and state in START_STATES) or (is_end and state in END_STATES):
            continue
        ends = [(i, 1.0) for i in into.get(vertex, [])], [(i, -1.0) for i in out.get(vertex, [])]
        rows.add([*ends[0], *ends[1]], 0, 0)
        # A border's collectives have the shares of the layer in front of it.
        if is_behind and segment_of[place] != behind[place]:
            continue
        for j in range(variables.n):
            rows.add([(variables.share(i, j), sign) for part in ends for i, sign in part], 0, 0)
