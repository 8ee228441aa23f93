"""The exact solver of chains, and the frontier of price and speed.

Front door: `solve`.
"""
