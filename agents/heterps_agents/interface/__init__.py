"""What a planner is: `Planner`, `Budget`, the names, the way from placement to plan.

Front doors: `planner.Planner`, `registry.planner_named`. A new planner is a class with
`plan(problem, budget)` under `registry.register`, and a line in that file's table of names.
"""
