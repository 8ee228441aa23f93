"""Imitation and PPO: how policies are trained, and judged while they are.

Front door: `train`.
"""
