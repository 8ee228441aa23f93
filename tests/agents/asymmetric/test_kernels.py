"""The sweep beside the same with nothing left out and nothing found in advance."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks.planners.asymmetric import small_problem
from heterps_agents.asymmetric.counts import counts_up_to
from heterps_agents.asymmetric.kernels import Sweep, sweep
from heterps_agents.asymmetric.pipes import View
from heterps_envs.closed_form.formula import Built
from heterps_envs.lanes.beside import Beside, held_by, link_behind, put_stage_in_front, stage_of


def empty_sweep(view: View, most_replicas: int, limit_s: float) -> Sweep:
    kernel = view.kernel
    counts = counts_up_to(kernel.device_count.tolist(), int(kernel.device_count.sum()))
    shape = kernel.num_layers, kernel.num_options, len(counts.vectors)
    written, left = np.full((5, *shape), -1), np.empty((2, shape[2]), np.int64)
    seconds, edges = np.full((2, *shape), np.inf), np.arange(kernel.num_layers + 1)
    return Sweep(edges, *counts, most_replicas, limit_s, *seconds, *written, *left)


def plainly_swept(view: View, beside: Beside, s: Sweep) -> None:
    """Each stage in front of each best pipeline, in order."""
    kernel, num_layers = view.kernel, view.kernel.num_layers
    for first in reversed(range(num_layers)):
        for at in np.ndindex(s.step_s.shape[1:]):
            kind, vector = at
            for replicas in range(1, min(s.most_replicas, beside.share) + 1):
                rest = taken_from(s, vector, kind, replicas)
                for stop in range(first + 1, num_layers + 1) if rest >= 0 else ():
                    plain_step(kernel, beside, s, (first, kind, vector), (stop, replicas, rest))
        for kind, vector in np.ndindex(s.step_s.shape[1:]) if first else ():
            links = [link_behind(kernel, first, kind, o) for o in range(kernel.num_options)]
            ways = 2.0 * np.array([sum(link) for link in links]) + s.step_s[first, :, vector]
            if np.isfinite(ways).any():
                s.behind[first, kind, vector] = int(ways.argmin())


def taken_from(s: Sweep, vector: int, kind: int, replicas: int) -> int:
    for _ in range(replicas):
        vector = int(s.less[vector, kind]) if vector >= 0 else -1
    return vector


def plain_step(
    kernel: Any, beside: Beside, s: Sweep, at: tuple[int, int, int], way: tuple[int, int, int]
) -> None:
    (first, kind, _), (stop, replicas, rest) = at, way
    is_last = stop == kernel.num_layers
    other = -1 if is_last else int(s.behind[stop, kind, rest])
    if (rest == 0) != is_last or (other < 0 and not is_last):
        return
    where = stop, other, rest
    built = Built(-1, 0.0, 0.0) if is_last else Built(other, s.step_s[where], s.fill_s[where])
    behind = 0 if is_last else int(s.stages[where])
    stage = stage_of(kernel, beside, first, stop, kind, replicas)
    held = held_by(stage, beside, kernel.is_gpipe, behind)
    link = link_behind(kernel, stop, kind, other)
    if held == 0:
        return
    step_s, fill_s = put_stage_in_front(stage, held, *link, built)
    if step_s < s.step_s[at] and step_s <= s.limit_s:
        s.step_s[at], s.fill_s[at], s.stages[at] = step_s, fill_s, behind + replicas
        s.stop[at], s.replicas[at], s.rest[at] = stop, replicas, rest


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("limit", [1.0, 2.0, 1e9])
@pytest.mark.parametrize(("counts", "memory"), [((2, 3), 0.7), ((1, 2, 2), 3.0)])
def test_a_sweep_leaves_out_nothing_that_is_better(
    counts: tuple[int, ...], memory: float, limit: float, schedule: str
) -> None:
    problem = small_problem(5, counts, schedule=schedule, memory=memory, global_batch_size=12)
    view = View.of(problem)
    limit_s = limit * float(view.kernel.compute_prefix_s[-1].min()) * 2
    beside = view.beside(5, 1.4, 0.5)
    swept, plain = (empty_sweep(view, 3, limit_s) for _ in range(2))
    sweep(view.kernel, beside, swept)
    plainly_swept(view, beside, plain)
    assert np.isfinite(plain.step_s).any()
    for name in ("step_s", "fill_s", "stages", "stop", "replicas", "rest", "behind"):
        np.testing.assert_array_equal(getattr(swept, name), getattr(plain, name), err_msg=name)
