"""The model: built, cut into layers, recorded, initialised; its batches and losses.

Front door: `build.build_module`. Its profile is made in `heterps_runtime.profiling`.
"""
