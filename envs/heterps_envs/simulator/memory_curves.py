"""Memory curves: what every device holds in the course of a step, for an estimate."""

from __future__ import annotations

import numpy as np

from heterps_configs.documents.estimate import MemoryCurve
from heterps_envs.arrays import Floats
from heterps_envs.schedule.actions import SEND_BACKWARD, SEND_FORWARD
from heterps_envs.simulator.action_times import ActionTimes
from heterps_envs.simulator.memory_timeline import ACTIVATION, BUFFER, GRADIENT, MemoryTimeline


def memory_curves(timeline: MemoryTimeline, times: ActionTimes) -> tuple[MemoryCurve, ...]:
    """One curve for each device of a plan.

    An action holds what it holds at its worst moment from its beginning to its end. So the highest
    point of a curve is the peak of `heterps_envs.simulator.memory_timeline`, and its last what is
    left.

    Args:
        timeline: What the actions of a plan hold.
        times: When they begin and end.
    """
    kind = times.schedule.kind
    # A send returns at once, and takes and frees nothing.
    acts = (kind != SEND_FORWARD) & (kind != SEND_BACKWARD)
    curves = []
    for index, device in enumerate(times.schedule.devices):
        part = slice(*times.schedule.offsets[index : index + 2])
        chosen = acts[part]
        moments = _alternating(times.start_s[part][chosen], times.end_s[part][chosen])
        held = _alternating(timeline.during[part][chosen], timeline.after[part][chosen])
        moments = np.concatenate([[0.0], moments])
        held = np.ceil(np.concatenate([timeline.before[index : index + 1], held]))
        changes = np.concatenate([[True], (np.diff(held, axis=0) != 0).any(axis=1)])
        changes[-1] = True
        seconds, held = moments[changes], held[changes].astype(np.int64)
        curves.append(
            MemoryCurve(
                device=device,
                parameter_bytes=round(timeline.parameter_bytes[index]),
                optimizer_bytes=round(timeline.optimizer_bytes[index]),
                times_s=tuple(seconds.tolist()),
                gradient_bytes=tuple(held[:, GRADIENT].tolist()),
                activation_bytes=tuple(held[:, ACTIVATION].tolist()),
                buffer_bytes=tuple(held[:, BUFFER].tolist()),
            )
        )
    return tuple(curves)


def _alternating(first: Floats, second: Floats) -> Floats:
    """One of `first`, one of `second`, and so on."""
    return np.stack([first, second], axis=1).reshape(-1, *first.shape[1:])
