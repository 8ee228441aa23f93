"""The planner of choice: `planner.AutoPlanner`, which asks all others as far as time allows.

`chains` looks for chains without options, `with_options` for those with them, `going_on` is what
follows where time is left, and `bounds` says how far a plan is from what is known of all.
"""
