"""Functions behind `place`, `compare` and `place-graph`; they print nothing.

Front doors: `place.place`, `compare.compare`, `problems.load_problem`.
"""
