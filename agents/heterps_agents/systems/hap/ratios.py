"""Shares of the devices: even, by speed, and the best for a program by a linear programme.

    minimise sum of c_t
    where    fixed_tj + per_share_tj * share_sj <= c_t   for every term t and device j
             sum over j of share_sj = 1                  for every segment s

The best shares jump: for one product and one padded gather they are by speed as long as the gather
is cheap and even from there on. So both are candidates beside what the programme says.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_matrix

from heterps_agents.systems.hap.chain import Chain, Instruction
from heterps_configs.errors import InfeasibleError
from heterps_envs.arrays import Floats


def even_shares(num_devices: int) -> Floats:
    """(n,) the same for all."""
    return np.full(num_devices, 1 / num_devices)


def shares_by_speed(speeds: Sequence[float]) -> Floats:
    """(n,) in proportion to the devices' speeds, where HAP begins."""
    return np.array(speeds, float) / sum(speeds)


def best_shares(program: Sequence[Instruction], chain: Chain) -> Floats:
    """(segments, n) shares with which a program takes least.

    Raises:
        InfeasibleError: It fits into the devices' memory with none.
    """
    n, segments = len(chain.speeds), chain.num_segments
    terms = [(each.segment, term) for each in program for term in each.terms]
    most = max((max(*t.fixed, *t.per_share, 0.0) for _, t in terms), default=0.0) or 1.0
    rows: list[int] = []
    columns: list[int] = []
    values: list[float] = []
    limits: list[float] = []
    first = segments * n
    for index, (segment, term) in enumerate(terms):
        for j in range(n):
            row = len(limits)
            rows += [row, row]
            columns += [segment * n + j, first + index]
            values += [term.per_share[j] / most, -1.0]
            limits.append(-term.fixed[j] / most)
    for j, limit in enumerate(chain.memory_bytes):
        unit = max(limit, 1.0)
        held = [(each.segment, each.memory) for each in program if each.memory]
        rows += [len(limits)] * len(held)
        columns += [segment * n + j for segment, _ in held]
        values += [memory.per_share[j] / unit for _, memory in held]
        limits.append((limit - sum(memory.fixed[j] for _, memory in held)) / unit)
    shape = len(limits), first + len(terms)
    sums = np.zeros((segments, shape[1]))
    for segment in range(segments):
        sums[segment, segment * n : (segment + 1) * n] = 1
    found = linprog(
        np.concatenate([np.zeros(first), np.ones(len(terms))]),
        A_ub=coo_matrix((values, (rows, columns)), shape).tocsr() if limits else None,
        b_ub=limits or None,
        A_eq=sums,
        b_eq=np.ones(segments),
        bounds=(0, None),
        method="highs",
    )
    if found.status != 0:
        raise InfeasibleError("the program does not fit into the memory of the devices")
    shares = np.clip(found.x[:first].reshape(segments, n), 0, 1)
    return np.asarray(shares / shares.sum(axis=1, keepdims=True))
