"""Graphs on concrete devices: heuristics, annealing, genetic search, the learned policy.

Front door: `planner`.
"""
