"""`LayerPlacement`: HeterPS's own decisions, layer by layer.

Front door: `env`.
"""
