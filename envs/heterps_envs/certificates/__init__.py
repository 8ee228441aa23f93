"""Re-checks of plans, bounds and splits that share no code with the solvers.

Front doors: `plan`, `split`.
"""
