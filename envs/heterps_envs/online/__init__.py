"""What a run teaches: beliefs, drift, moves of state, fewer devices.

Front door: `correction`.
"""
