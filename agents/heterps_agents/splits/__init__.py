"""Operator graphs split over equal devices by the largest load, proven.

Front doors: `solve.split_graph`, `contiguous.split_contiguous`.
"""
