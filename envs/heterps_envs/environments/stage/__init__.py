"""`StagePlacement` and `PricedStagePlacement`: a chain stage by stage, last first.

Front doors: `env.StagePlacementEnv`, `priced_env.PricedStagePlacementEnv`. Features of a
decision: `features`, their number and `FEATURE_VERSION`: `state`.
"""
