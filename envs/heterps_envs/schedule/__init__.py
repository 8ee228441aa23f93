"""From a plan to every device's action list.

Front door: `build`. A schedule is one module here and one line in `build`.
"""
