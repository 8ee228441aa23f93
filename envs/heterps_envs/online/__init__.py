"""What a run teaches: beliefs about times, drift, moves of state.

Front door: `correction.ProblemBelief`. Pure computation: runs are watched in `heterps.online`.
"""
