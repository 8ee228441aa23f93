"""What the commands that start processes do: they measure models and links, and run plans.

Front door: `run.run_run`.
"""
