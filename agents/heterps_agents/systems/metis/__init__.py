"""Metis (2024): unlike device groups as stages, data and layers balanced, memory repaired."""
