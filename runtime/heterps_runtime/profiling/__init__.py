"""Measures models, links and host times into profiles and clusters.

Front door: `profiler`.
"""
