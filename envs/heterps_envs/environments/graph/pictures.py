"""Reads pictures of graphs out of running episodes of graph placement."""

from __future__ import annotations

import numpy as np

from heterps_envs.environments.base.drawing import Image, seconds_text
from heterps_envs.environments.base.state import COMPLETE, RUNNING
from heterps_envs.environments.graph.drawing import GraphPicture, draw_graph
from heterps_envs.environments.graph.pool import GraphPool
from heterps_envs.environments.graph.state import GraphRows


def draw_graphs(pool: GraphPool, rows: GraphRows, row: int) -> Image:
    """A graph placement so far."""
    status = int(rows.status[row])
    problems, z, position = pool.problems, int(rows.problem[row]), int(rows.position[row])
    nodes, devices = int(problems.num_nodes[z]), int(problems.num_devices[z])
    placed = np.full(nodes, -1, np.int64)
    placed[:position] = rows.devices[row, :position]
    producers, consumers = pool.producer_edges(z)
    reference_s = float(pool.reference_s[z])
    note = f"earliest finish takes {seconds_text(reference_s)}"
    if status == COMPLETE:
        step_time_s = float(rows.step_time_s[row])
        note = f"step time {seconds_text(step_time_s)}; {note}"
    else:
        soonest_s = float(max(rows.free_s[row, :devices].max(), 0.0))
        note = f"forward passes so far take {seconds_text(soonest_s)}; {note}"
    ending = {RUNNING: "", COMPLETE: ", complete"}.get(status, ", stuck")
    limits = np.maximum(problems.device_memory_bytes[z, :devices], 1e-30)
    return draw_graph(
        GraphPicture(
            title=f"GraphPlacement-v0: problem {z}, {position} of {nodes} nodes{ending}",
            producers=producers,
            consumers=consumers,
            devices=placed,
            next_node=position if status == RUNNING else -1,
            busy_share=rows.load_s[row, :devices] / reference_s,
            busy_title="busy, of the earliest-finish step time",
            memory_share=rows.memory_bytes[row, :devices] / limits,
            note=note,
        )
    )
