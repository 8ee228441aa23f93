"""Functions behind `place`, `compare` and `place-graph`; they print nothing.

Front door: `place`.
"""
