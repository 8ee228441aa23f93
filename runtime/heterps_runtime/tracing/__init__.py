"""From a module to a profile's layers, without weights: costs, cuts, tensor splits.

Front doors: `trace.trace`, `trace.trace_source`.
"""
