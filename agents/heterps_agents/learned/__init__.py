"""Placement by a trained policy: scores, beams, windows, efforts; inference is NumPy.

Front door: `search`.
"""
