"""Gymnasium ids. `gym.make("heterps_envs.registration:heterps/StagePlacement-v0")` imports this."""

from __future__ import annotations

import gymnasium as gym

STAGE_PLACEMENT = "heterps/StagePlacement-v0"


def register() -> None:
    """Registers the environments; a second call changes nothing."""
    if STAGE_PLACEMENT not in gym.registry:
        gym.register(STAGE_PLACEMENT, "heterps_envs.stage_placement:StagePlacementEnv")


register()
