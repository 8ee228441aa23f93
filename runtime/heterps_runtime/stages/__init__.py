"""A stage on its rank: parameters, passes, optimizer.

Front door: `owned_stages.build_stages`.
"""
