"""Reads pictures of chains out of running episodes, for both environments that place chains."""

from __future__ import annotations

import math

import numpy as np

from heterps_envs.closed_form.placement import PlacedStage, decode
from heterps_envs.closed_form.stage_formula import in_flight
from heterps_envs.environments.base.chain_drawing import ChainPicture, DrawnStage, draw_chain
from heterps_envs.environments.base.drawing import Image, seconds_text
from heterps_envs.environments.base.state import RUNNING, STUCK
from heterps_envs.environments.layer.pool import LayerPool
from heterps_envs.environments.layer.state import VERDICTS, LayerRows
from heterps_envs.environments.stage.packed import StageProblems
from heterps_envs.environments.stage.pictures import _measured, _memory, _part


def draw_layers(pool: LayerPool, rows: LayerRows, row: int) -> Image:
    """A layer placement so far."""
    status = int(rows.status[row])
    chains, z, position = pool.problems.chains, int(rows.problem[row]), int(rows.position[row])
    layers, classes = int(chains.num_layers[z]), int(chains.num_classes[z])
    lines = {"reference": float(pool.step_time_s[z]), "floor": float(rows.floor_s[row])}
    if status in (RUNNING, STUCK):
        stages = [_open_stage(chains, z, entry) for entry in decode(rows.kinds[row, :position])]
        note = "one replica each, until all layers have a class"
    else:
        stages = _measured(chains, z, decode(rows.code[row, :layers]), math.inf)
        lines["step time"] = float(rows.step_time_s[row])
        note = f"step time {seconds_text(lines['step time'])}"
        note += f", {rows.price_usd_per_hour[row]:.3g} USD per hour"
    note += f"; reference {seconds_text(lines['reference'])}, floor {seconds_text(lines['floor'])}"
    verdict = f", {VERDICTS[status]}" if status != RUNNING else ""
    return draw_chain(
        ChainPicture(
            title=f"LayerPlacement-v0: problem {z}, {position} of {layers} layers{verdict}",
            layer_values=np.diff(chains.value_prefix_s[z, : layers + 1]),
            stages=stages,
            next_layer=position if status == RUNNING else -1,
            device_count=chains.device_count[z, :classes],
            memory_bytes=chains.memory_bytes[z, :classes],
            lines_s=lines,
            note=note,
        )
    )


def _open_stage(p: StageProblems, z: int, stage: PlacedStage) -> DrawnStage:
    """A stage whose replicas are not known: the work of one, and the least memory."""
    kind, start, stop = stage.device_class, stage.first_layer, stage.last_layer + 1
    busy_s = int(p.num_micro_batches[z]) * _part(p.compute_prefix_s[z, :, kind], start, stop)
    count = int(p.device_count[z, kind])
    held = in_flight(int(p.num_micro_batches[z]), bool(p.is_gpipe[z]), count, 0)
    return DrawnStage(start, stop, kind, 0, busy_s, math.inf, _memory(p, z, start, stop, held))
