"""The formula that searches use: step time, placements, objective, bounds, why there is no plan.

Front door: `formula`.
"""
