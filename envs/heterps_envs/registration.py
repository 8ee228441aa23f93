"""Gymnasium ids. `gym.make("heterps_envs.registration:heterps/StagePlacement-v0")` imports this."""

from __future__ import annotations

import gymnasium as gym

STAGE_PLACEMENT = "heterps/StagePlacement-v0"
PRICED_STAGE_PLACEMENT = "heterps/PricedStagePlacement-v0"
LAYER_PLACEMENT = "heterps/LayerPlacement-v0"
GRAPH_PLACEMENT = "heterps/GraphPlacement-v0"


def register() -> None:
    """Registers the environments; a second call changes nothing."""
    if STAGE_PLACEMENT not in gym.registry:
        gym.register(STAGE_PLACEMENT, "heterps_envs.environments.stage.env:StagePlacementEnv")
    if PRICED_STAGE_PLACEMENT not in gym.registry:
        gym.register(
            PRICED_STAGE_PLACEMENT,
            "heterps_envs.environments.stage.priced_env:PricedStagePlacementEnv",
        )
    if LAYER_PLACEMENT not in gym.registry:
        gym.register(LAYER_PLACEMENT, "heterps_envs.environments.layer.env:LayerPlacementEnv")
    if GRAPH_PLACEMENT not in gym.registry:
        gym.register(GRAPH_PLACEMENT, "heterps_envs.environments.graph.env:GraphPlacementEnv")


register()
