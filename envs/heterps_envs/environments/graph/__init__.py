"""`GraphPlacement`: a graph node by node onto concrete devices.

Front door: `env.GraphPlacementEnv`. Features of a decision: `kernels`; known before any node:
`guides`.
"""
