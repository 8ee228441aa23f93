"""Whale (2022): loads in proportion to power, guarded by memory."""
