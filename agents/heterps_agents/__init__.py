"""All that answers a problem with a plan: exact, heuristic, searching, learned.

Front door: `interface.registry.planner_named`. Planners never open a socket; what a plan costs
is asked of `heterps_envs`.
"""
