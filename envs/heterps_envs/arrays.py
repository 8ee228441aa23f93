"""Types of the arrays that problems, searches and policies pass around."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]
# One placement, encoded (see `heterps_envs.closed_form.placement.encode`).
Code = NDArray[np.int32]
