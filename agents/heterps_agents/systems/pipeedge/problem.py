"""PipeEdge's scheduling problem as a chain whose compute and messages overlap."""

from __future__ import annotations

import numpy as np

from heterps_agents.systems.pipeedge.chain_bottleneck import Chain
from heterps_configs.importers.pipeedge import PipeEdgeProblem

_FLOAT_BYTES = 4
# Its runtime holds two send and two receive buffers beside what a stage reads and writes.
BUFFERS = 3


def chain_of(problem: PipeEdgeProblem) -> Chain:
    """The chain: one class for each device type; a message goes at the slower end's bandwidth."""
    types, model = problem.device_types, problem.model
    elements = np.array((model.input_elements, *model.output_elements), np.float64)
    bandwidth = np.array([entry.bandwidth_bytes_per_s for entry in types])
    return Chain(
        seconds=np.array([entry.seconds for entry in types]).T.copy(),
        memory_bytes=np.array(model.memory_bytes),
        cut_bytes=elements * _FLOAT_BYTES * problem.batch_size,
        buffers=BUFFERS,
        counts=np.array([len(entry.hosts) for entry in types], np.int64),
        capacity_bytes=np.array([entry.memory_bytes for entry in types]),
        bandwidth_bytes_per_s=np.minimum(bandwidth[:, None], bandwidth[None, :]),
    )
