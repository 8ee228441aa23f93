"""The exact solver of chains, and the frontier of price and speed.

Front doors: `solve.solve`, `frontier.solve_frontier`. The sweep itself is in `kernels`.
"""
