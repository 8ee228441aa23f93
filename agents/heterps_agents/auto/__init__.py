"""The planner of choice: the exact solver, the policy, searches, and others' answers.

Front door: `planner.AutoPlanner`. `chains` looks for chains without options, `with_options` for
those with them, `copies` and `fastest_kind` for plans on some of the devices, `others` asks other
planners, `going_on` is what follows while time is left, with `walks` on the simulator, and `bounds`
says how far a plan is from what is known of all.
"""
