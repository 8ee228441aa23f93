"""Runs a plan on devices that come and go.

Front door: `run_elastic`.
"""
