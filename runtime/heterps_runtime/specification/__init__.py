"""What a run is: plan, action lists, ranks, devices, as one document for all.

Front door: `build.build_specification` makes a `run.RunSpecification`.
"""
