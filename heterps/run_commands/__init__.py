"""What the commands that measure and run do: they start processes.

Front doors: `run.run_run`, `from_python.run`.
"""
