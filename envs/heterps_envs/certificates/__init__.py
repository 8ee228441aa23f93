"""Re-checks of plans, splits and bounds, without any code of the solvers.

Front doors: `plan.check_certificate`, `simulated.with_simulated`,
`split.check_split_certificate`. That definitions stand here a second time is the point: nothing
here may import `closed_form`, `schedule`, `simulator` or a planner.
"""
