"""No plan that can be run is simulated in less: bounds from what devices can do.

Front door: `executable.least_executable_s`. Of few devices `whole_plans` goes through all stages.
"""
