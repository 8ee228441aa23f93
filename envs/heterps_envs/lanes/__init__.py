"""Step time of pipelines and lanes side by side, by a compiled formula.

Front door: `step.lanes_step_s`.
"""
