"""Searches that learn nothing: greedy, random, genetic, annealing, cross-entropy, proportional.

Front door: `planner`.
"""
