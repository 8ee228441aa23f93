"""What a planner is: `Planner`, `Budget`, the names, the way from placement to plan.

Front doors: `planner.Planner`, `registry.planner_named`. A new planner is a class with
`plan(problem, budget)` under `registry.register`, or a function from a `question.Question` to a
code under `search_planner.search_planner`, and a line in the registry's table of names.
"""
