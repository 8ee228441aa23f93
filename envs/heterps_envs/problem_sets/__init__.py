"""Drawn, shipped and published problems; the frozen sets that methods are judged on.

Front doors: `chains.generate` and `graphs.generate_graphs` to train on, `test_sets` to judge
by.
"""
