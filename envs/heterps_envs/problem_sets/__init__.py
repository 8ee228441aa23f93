"""Drawn, shipped and published problems, and the frozen sets that methods are judged on.

Front door: `test_sets`.
"""
