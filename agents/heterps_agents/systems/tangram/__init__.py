"""Tangram (2026): plans of equal devices for slices of the model, composed to a pipeline."""
