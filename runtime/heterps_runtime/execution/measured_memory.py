"""The memory curve of a measured step, in the shape of an estimate's.

Memory is measured in one step of a plan and times in others, but both execute the same list, so
that the bytes of an action belong to its times in any step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from heterps_configs.documents.estimate import MemoryCurve
from heterps_runtime.process.memory_report import MemoryByKind, MemoryReport

if TYPE_CHECKING:
    from heterps_runtime.process.memory_ledger import ActionMemory

# What changes in a step: gradients, activations, buffers.
Held = tuple[int, int, int]


def held_in_actions(actions: Sequence[ActionMemory]) -> list[tuple[Held, Held]]:
    """For each action of a step, what was held at its worst moment and when it was over."""
    return [(_held(action.peak), _held(action.after)) for action in actions]


def measured_curve(
    report: MemoryReport,
    held: Sequence[Sequence[Sequence[int]]],
    times_s: Sequence[tuple[float, float]],
) -> MemoryCurve:
    """The memory of one device in the course of a step.

    Args:
        report: Its peak.
        held: What `held_in_actions` found.
        times_s: Begin and end of the same actions.
    """
    moments, numbers = [0.0], [held[0][0]]
    for (begin_s, end_s), (peak, after) in zip(times_s, held, strict=True):
        # An emulated device that is late may begin before the last action's end.
        moments += [max(begin_s, moments[-1]), max(begin_s, end_s, moments[-1])]
        numbers += [peak, after]
    gradients, activations, buffers = zip(*numbers, strict=True)
    return MemoryCurve(
        device=report.device,
        parameter_bytes=report.at_peak.parameters,
        optimizer_bytes=report.at_peak.optimizer,
        times_s=tuple(moments),
        gradient_bytes=gradients,
        activation_bytes=activations,
        buffer_bytes=buffers,
    )


def _held(memory: MemoryByKind) -> Held:
    """Gradients, activations, and all else that comes and goes, workspace left out."""
    return memory.gradients, memory.activations, memory.inputs + memory.messages
