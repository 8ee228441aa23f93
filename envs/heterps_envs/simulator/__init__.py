"""Times the action lists of a plan, and their memory.

Front door: `simulate`.
"""
