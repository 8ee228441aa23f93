"""Runs a plan: launcher, workers, training loop, and the parent of them.

Front door: `run_plan.run_plan`. Each process: `worker`, its loop: `trainer`. Beside them all:
`parent`, which calls `hooks`. One step is `heterps_runtime.execution`; what is measured goes to
`heterps_runtime.results`.
"""
