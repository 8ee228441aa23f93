"""Spot traces: when devices vanish and come back, and a strategy's way through them.

Front door: `replay.replay`. The strategies themselves are in `heterps.online.spot_strategies`.
"""
