"""A stage on its rank: parameters, passes, optimizer.

Front door: `build.build_stages`.
"""
