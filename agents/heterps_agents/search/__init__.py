"""Searches that learn nothing: greedy, random, genetic, annealing, proportional.

Front door: `planner.SearchPlanner`: a search as a planner.
"""
