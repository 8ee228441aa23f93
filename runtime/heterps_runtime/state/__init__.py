"""Checkpoints and moves of state, by parameter name.

Front door: `checkpoint`.
"""
