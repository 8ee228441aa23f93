"""Pipelines of unlike depth, cuts and devices side by side: heterps's own answer to AutoHet.

Front door: `planner.AsymmetricPlanner`.
"""
