"""Step time by formula, placements, what searches minimise, lower bounds.

Front door: `formula.evaluate`; what one stage takes is in `stage_formula`. `objective` is the one
number that all searches compare, `infeasible` says why a problem has no plan. A finished plan is
judged by `heterps_envs.simulator`, not here.
"""
