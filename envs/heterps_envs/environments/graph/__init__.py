"""`GraphPlacement`: a graph node by node onto concrete devices.

Front door: `env`.
"""
