"""Pipelines of unlike depth, cuts and devices side by side, and blocks of such lanes.

Front door: `planner.AsymmetricPlanner`.
"""
