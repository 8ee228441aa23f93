"""Seconds and bytes of a layer on a device, and how sure they are.

Front door: `seconds`. How memory is counted: `memory_rule` and `memory`.
"""
