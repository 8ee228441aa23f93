"""What the commands that measure and run do: they start processes.

Front door: `run.run_run`.
"""
