"""A lower bound of the simulated step of every plan that can be run, from devices and layers.

Front door: `executable.least_executable_s`.
"""
