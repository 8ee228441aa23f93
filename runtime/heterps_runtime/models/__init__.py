"""The model: built, cut into layers, recorded, initialised; its batches and losses.

Front door: `build`.
"""
