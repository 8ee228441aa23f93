"""From the best placements to the plan that is shown: interleaving, all-reduces, the simulator.

Front door: `shortlist`.
"""
