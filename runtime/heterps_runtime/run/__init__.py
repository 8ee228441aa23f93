"""Runs a plan: launcher, workers, training loop, result.

Front door: `run_plan`.
"""
