"""From the best placements to the plan that is shown.

Front door: `shortlist.best_simulated`: the simulator chooses. Then more chunks per device
(`interleaving`) and gradient sums beside or after the backward passes (`reduce_choice`).
"""
