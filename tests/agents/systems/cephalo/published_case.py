"""Cephalo's case of four GPUs, as its published code has it (benson-guo/cephalo, MIT).

GPT-2.7B, sequences of 512 in float16, 64 samples: milliseconds of one block for a micro-batch of b
samples are lines. What a sample keeps of a block is the usual count of a transformer's activations
(34 s h + 5 a s^2 bytes, hidden size 2560, 32 heads), and its input for each of 32 blocks.
"""

from __future__ import annotations

import numpy as np

from heterps_agents.systems.cephalo.batches import Case
from heterps_agents.systems.cephalo.cost import Collectives, DeviceTimes, Line

SAMPLES, PARAMETERS = 64, 2.7e9
# The samples that its code ships for the GPUs.
SHIPPED = (13, 12, 34, 5)
SAMPLE_BYTES = 34 * 512 * 2560 + 5 * 32 * 512**2 + 32 * 2 * 512 * 2560


def line(slope_ms: float, start_ms: float) -> Line:
    return Line(np.array([slope_ms * 1e-3]), np.array([start_ms * 1e-3]))


L4 = DeviceTimes(line(7.415, 1.1815), line(10.946, 4.843))
A6000 = DeviceTimes(line(2.8355, 0.664), line(4.221, 2.404))
P40 = DeviceTimes(line(15.637, 4.133), line(28.017, 1.877))
# The fixture has no time of collectives.
NOTHING = Collectives(np.zeros(1), np.zeros(1), np.zeros(1))

CASE = Case(
    times=(L4, L4, A6000, P40),
    memory_bytes=(24e9, 24e9, 48e9, 24e9),
    collectives=NOTHING,
    num_samples=SAMPLES,
    sizes=range(1, SAMPLES + 1),
    state_bytes=16 * PARAMETERS,
    sample_bytes=SAMPLE_BYTES,
)
