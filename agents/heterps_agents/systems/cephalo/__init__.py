"""Cephalo (2025): shares of the batch and of the training state, each for itself."""
