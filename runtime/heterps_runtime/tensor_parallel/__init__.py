"""A rank's slice of each layer: which, how it computes, and its sums over the group.

Front door: `plan.split_plan`, `split.split_module`, `regions.cut`.
"""
