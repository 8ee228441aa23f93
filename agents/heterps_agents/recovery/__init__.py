"""Plans for losses of devices, prepared before they happen.

Front door: `book`.
"""
