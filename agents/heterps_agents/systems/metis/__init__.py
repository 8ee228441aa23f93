"""Metis (2024): unlike device groups as stages, batch and layers balanced."""
