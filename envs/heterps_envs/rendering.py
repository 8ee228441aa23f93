"""Pictures of placements, for `render_mode="rgb_array"` of the environments."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from heterps_configs.errors import HeterpsError

Image = NDArray[np.uint8]
RENDER_MODES = (None, "rgb_array")


def check_render_mode(render_mode: str | None) -> None:
    """Refuses render modes that no environment has.

    Raises:
        HeterpsError: It is neither None nor "rgb_array".
    """
    if render_mode not in RENDER_MODES:
        raise HeterpsError(f'there is no render mode {render_mode!r}; allowed: "rgb_array" or None')
