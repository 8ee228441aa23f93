"""From the best placements to the plan that is shown.

Front door: `shortlist.best_simulated`: the simulator chooses; of what a search found on its way,
`finds.best_of_finds`. Walks (`stage_walk`) go on from a plan.
"""
