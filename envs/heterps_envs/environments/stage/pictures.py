"""Reads pictures of chains out of running episodes, for both environments that place chains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from heterps_envs.closed_form.placement import PlacedStage, decode
from heterps_envs.closed_form.stage_formula import in_flight, stage_after_s, stage_work_s
from heterps_envs.environments.base.chain_drawing import ChainPicture, DrawnStage, draw_chain
from heterps_envs.environments.base.drawing import Image, seconds_text
from heterps_envs.environments.base.state import COMPLETE, RUNNING
from heterps_envs.environments.stage.growth import open_in_flight
from heterps_envs.environments.stage.packed import StageProblems
from heterps_envs.environments.stage.pool import ProblemPool
from heterps_envs.environments.stage.priced_pool import PricedPool
from heterps_envs.environments.stage.state import StageRows


def draw_stages(pool: ProblemPool, rows: StageRows, row: int) -> Image:
    """A stage placement so far."""
    chains, z, position = pool.problems, int(rows.problem[row]), int(rows.position[row])
    layers, classes = int(chains.num_layers[z]), int(chains.num_classes[z])
    placed = [
        replace(
            entry, first_layer=entry.first_layer + position, last_layer=entry.last_layer + position
        )
        for entry in decode(rows.code[row, position:layers])
    ]
    name = "PricedStagePlacement-v0" if isinstance(pool, PricedPool) else "StagePlacement-v0"
    target_s, is_running = float(rows.target_s[row]), rows.status[row] == RUNNING
    ending = "" if is_running else (", complete" if rows.status[row] == COMPLETE else ", stuck")
    note = (
        f"target {seconds_text(target_s)} (red: what it allows each stage); "
        f"step time so far {seconds_text(float(rows.behind_s[row]))}, best known "
        f"{seconds_text(float(pool.step_time_s[z]))}; "
        f"fill {seconds_text(float(rows.fill_s[row]))}, "
        f"limit {seconds_text(float(rows.fill_limit_s[row]))}"
    )
    if isinstance(pool, PricedPool):
        dollars = float(rows.used[row] @ chains.price_usd_per_hour[z])
        note += f"; {dollars:.3g} USD/h of at most {rows.price_limit_usd_per_hour[row]:.3g}"
    return draw_chain(
        ChainPicture(
            title=f"{name}: problem {z}, {len(placed)} stages{ending}",
            layer_values=np.diff(chains.value_prefix_s[z, : layers + 1]),
            stages=_measured(chains, z, placed, target_s),
            next_layer=position - 1 if is_running else -1,
            device_count=chains.device_count[z, :classes],
            memory_bytes=chains.memory_bytes[z, :classes],
            lines_s={},
            note=note,
        )
    )


def _measured(
    p: StageProblems, z: int, placed: Sequence[PlacedStage], target_s: float
) -> list[DrawnStage]:
    """Stages with their replicas, as the closed form counts them; all behind them are there."""
    drawn: list[DrawnStage] = []
    micro_batches, replicas_behind, fill_s = int(p.num_micro_batches[z]), 0, 0.0
    for index in range(len(placed) - 1, -1, -1):
        stage = placed[index]
        kind, start, stop = stage.device_class, stage.first_layer, stage.last_layer + 1
        held = in_flight(micro_batches, bool(p.is_gpipe[z]), stage.replicas, replicas_behind)
        trip_s = fill_s
        if index + 1 < len(placed):
            trip_s += _message_s(p, z, stop, kind, placed[index + 1].device_class)
        forward_s = _part(p.forward_prefix_s[z, :, kind], start, stop)
        compute_s = _part(p.compute_prefix_s[z, :, kind], start, stop)
        share = -(-micro_batches // stage.replicas)
        most = open_in_flight(p, z, start, stop, kind, stage.replicas, held)
        busy_s = stage_work_s(forward_s, compute_s - forward_s, trip_s, share, most)
        far = int(stage.replicas > p.node_size[z, kind])
        busy_s += stage_after_s(
            _part(p.gradient_prefix_bytes[z, :, kind], start, stop),
            _part(p.optimizer_prefix_s[z, :, kind], start, stop),
            stage.replicas,
            float(p.ring_latency_s[z, kind, far]),
            float(p.ring_inverse_bandwidth[z, kind, far]),
        )
        fill_s = trip_s + compute_s
        memory = _memory(p, z, start, stop, held)
        drawn.append(
            DrawnStage(start, stop, kind, stage.replicas, busy_s, target_s + fill_s, memory)
        )
        replicas_behind += stage.replicas
    return drawn[::-1]


def _part(prefix: NDArray[np.float64], start: int, stop: int) -> float:
    return float(prefix[stop] - prefix[start])


def _memory(p: StageProblems, z: int, start: int, stop: int, held: int) -> float:
    kept = held * _part(p.activation_prefix_bytes[z, :, 0], start, stop)
    return _part(p.state_prefix_bytes[z, :, 0], start, stop) + kept


def _message_s(p: StageProblems, z: int, stop: int, kind: int, following: int) -> float:
    """There and back over the cut behind layer `stop - 1`."""
    transfer_s = p.output_bytes[z, stop - 1] * p.inverse_bandwidth_s_per_byte[z, kind, following]
    return float(2.0 * (p.latency_s[z, kind, following] + transfer_s))
