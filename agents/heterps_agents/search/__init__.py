"""Searches that learn nothing: greedy, random, genetic, annealing, proportional.

Front door: `starts.simple_start`, where they begin.
"""
