"""What a planner is: `Planner`, `Budget`, the registry, the way from a placement to a plan.

Front door: `registry`.
"""
