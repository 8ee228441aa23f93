"""Runs a plan: launcher, workers, training loop, result.

Front door: `run_plan.run_plan`. Each process: `worker`, its loop: `trainer`. One step is
`heterps_runtime.execution`.
"""
