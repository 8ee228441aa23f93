"""Malleus (Li et al., 2024): plans for stragglers, which leave their groups.

`straggler.regroup` compares all groupings of a node's devices with those that there are; `degrees`
has what groups of a problem cost, and `system` makes plans of it.
"""
