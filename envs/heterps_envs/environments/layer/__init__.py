"""`LayerPlacement`: HeterPS's own decisions, layer by layer.

Front door: `env.LayerPlacementEnv`. Features of a decision: `kernels`.
"""
