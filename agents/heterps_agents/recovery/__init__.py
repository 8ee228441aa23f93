"""Plans for losses of devices, prepared before they happen.

Front door: `book.RecoveryBook`. Rules that mend a plan: `rules`. Processes and state are the
runtime's (`heterps_runtime.elastic`).
"""
