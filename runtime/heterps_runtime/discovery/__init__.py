"""Finds out what hosts have: devices, memory, links; by one read-only script.

Front door: `discover.discover`.
"""
