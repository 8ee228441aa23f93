"""From a plan to every device's action list.

Front door: `build.build_schedule`. A schedule that only orders passes anew is a module here and
a line in `build`. The lists are timed in `heterps_envs.simulator` and executed in
`heterps_runtime.execution`.
"""
