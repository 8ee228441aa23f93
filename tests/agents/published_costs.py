"""Cost formulas of other systems, in a few lines each, to score splits with.

Sources are named at each function; the numbers that tests expect from them were checked by
running the systems' own code or by brute force.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise

Split = tuple[int, ...]  # layers of each stage


def splits(num_layers: int, num_stages: int) -> Iterator[Split]:
    """All contiguous splits, every stage with at least one layer."""
    for cuts in combinations(range(1, num_layers), num_stages - 1):
        yield tuple(stop - start for start, stop in pairwise((0, *cuts, num_layers)))


def oobleck_s(weights: Sequence[float], split: Split) -> float:
    """Iteration time of a pipeline template with `4 S` micro-batches.

    Oobleck (Jang et al., SOSP 2023), section 4.1.2: with k* the slowest stage, counted from 0,
    `T = sum w + (N - S + k* - 1) w_k* + sum_{i >= k*} w_i`. Of equally slow stages the last.
    """
    edges = [0]
    for size in split:
        edges.append(edges[-1] + size)
    stages = [sum(weights[start:stop]) for start, stop in pairwise(edges)]
    slowest = max(range(len(stages)), key=lambda index: (stages[index], index))
    steady = (4 * len(stages) - len(stages) + slowest - 1) * stages[slowest]
    return sum(stages) + steady + sum(stages[slowest:])


def template_combinations(nodes: int, sizes: Sequence[int]) -> int:
    """Multisets of template sizes that use all nodes (Oobleck, section 4.2.1)."""
    ways = [1] + [0] * nodes
    for size in sizes:
        for total in range(size, nodes + 1):
            ways[total] += ways[total - size]
    return ways[nodes]


def shares(seconds: Sequence[float], total: int, least: int = 1) -> list[int]:
    """Integers with a sum that minimise `max_i seconds_i share_i`.

    The lower problems of Malleus (arXiv 2410.13333: layers of a pipeline's stages, micro-batches
    of pipelines) without memory, and Oobleck's batch distribution as a minimum of the maximum.
    One more unit goes where it ends first, which is optimal.
    """
    out = [least] * len(seconds)
    for _ in range(total - sum(out)):
        index = min(range(len(out)), key=lambda i: ((out[i] + 1) * seconds[i], i))
        out[index] += 1
    return out


def amp_s(
    compute_s: Sequence[float],
    parameters: Sequence[float],
    split: Split,
    *,
    micro_batches: int,
    message_s: float,
    replicas: int,
    seconds_per_parameter: float,
) -> float:
    """Iteration time by AMP's cost model (Li et al., NeurIPS 2022).

    `(B - 1) max_stage + sum of stages + sum of messages`, and the slowest stage's ring all-reduce.
    """
    edges = [0]
    for size in split:
        edges.append(edges[-1] + size)
    stages = [sum(compute_s[start:stop]) for start, stop in pairwise(edges)]
    largest = max(sum(parameters[start:stop]) for start, stop in pairwise(edges))
    ring = 2 * (replicas - 1) / replicas * largest * seconds_per_parameter
    return (micro_batches - 1) * max(stages) + sum(stages) + message_s * (len(stages) - 1) + ring
