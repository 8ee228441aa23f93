"""Planners of papers, a folder each."""
