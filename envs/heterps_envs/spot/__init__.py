"""Spot traces, and their replay.

Front door: `replay`.
"""
