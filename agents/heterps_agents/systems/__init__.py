"""Planners of papers, a folder each.

`heterps`, `malleus`, `oobleck`, `pipedream`, `pipeedge`, `piper`, `sailor`. Front doors:
`sailor.planner`, `piper.planner`, `pipedream.planner`.
"""
