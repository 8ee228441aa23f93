"""Operator graphs split over equal devices by the largest load, proven.

Front door: `solve`.
"""
