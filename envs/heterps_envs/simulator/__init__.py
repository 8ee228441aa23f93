"""Times the action lists of a plan, and their memory.

Front door: `simulate.estimate`. Memory action by action: `memory_timeline`; a lower bound for
one plan: `plan_bound`; from device classes to devices: `binding`.
"""
