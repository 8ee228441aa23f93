"""Measures models, links and host times into profiles and clusters.

Front doors: `profiler.measure`, `link_profiler.measure_host`, `model_source.resolve_profile`
(from MODEL on the command line to a profile).
"""
