"""Tangram (2026): plans of equal devices for slices, composed to one pipeline."""
