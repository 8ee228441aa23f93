"""Where the next node of a graph may go so that the nodes behind it still find memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from heterps_envs.compiled import helper


@helper
def allow_devices(p: Any, guides: Any, rows: Any, row: int, allowed: Any) -> None:
    """Says which devices the next node of an episode may go to.

    Those that can run it and have memory left for it; and of these, those after which the nodes
    left can be packed: the largest first, each on the device with most memory left. Where no device
    passes that (packing is only a rule, and may miss a way), the last condition falls away.

    Args:
        p: `GraphProblems`.
        guides: `GraphGuides`.
        rows: `GraphRows`.
        row: The episode.
        allowed: (D,) written to.
    """
    z, node = rows.problem[row], rows.position[row]
    devices, size = p.num_devices[z], p.memory_bytes[z, node]
    left, trial = np.empty(devices), np.empty(devices)
    for device in range(devices):
        left[device] = p.device_memory_bytes[z, device] - rows.memory_bytes[row, device]
        # The sum, as the simulator makes it, decides; a difference might round to the other side.
        held = rows.memory_bytes[row, device] + size
        fits = held <= p.device_memory_bytes[z, device]
        allowed[device] = fits and p.forward_s[z, node, device] < np.inf
    # While so much is left that some device always has room for the largest node, all is well.
    spare = left.sum() - guides.remaining_bytes[z, node]
    if guides.runs_everywhere[z] and (
        spare >= devices * guides.remaining_largest_bytes[z, node + 1]
    ):
        return
    passes = np.zeros(devices, np.bool_)
    for device in range(devices):
        if allowed[device]:
            trial[:] = left
            trial[device] -= size
            passes[device] = _packs(p, guides, z, node + 1, trial)
    if passes.any():
        for device in range(devices):
            allowed[device] = passes[device]


@helper
def _packs(p: Any, guides: Any, z: int, first: int, left: Any) -> bool:
    """Whether the nodes from `first` on find memory, the largest first; `left` is used up."""
    for index in range(p.num_nodes[z]):
        node = guides.by_size[z, index]
        if node < first:
            continue
        best = -1
        for device in range(len(left)):
            able = p.forward_s[z, node, device] < np.inf
            if able and (best < 0 or left[device] > left[best]):
                best = device
        if best < 0 or left[best] < p.memory_bytes[z, node]:
            return False
        left[best] -= p.memory_bytes[z, node]
    return True
