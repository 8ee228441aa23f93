"""`StagePlacement` and `PricedStagePlacement`: a chain stage by stage, last stage first.

Front door: `env`.
"""
