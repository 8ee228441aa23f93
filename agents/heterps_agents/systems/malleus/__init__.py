"""Malleus (Li et al., 2024): plans for stragglers."""
