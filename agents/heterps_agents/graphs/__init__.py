"""Graphs on concrete devices: simple rules, annealing, genetic search, the policy.

Front door: `planner.place_graph`. The graph simulator is `heterps_envs.graphs`.
"""
