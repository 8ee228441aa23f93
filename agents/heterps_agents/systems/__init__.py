"""Planners of papers: HeterPS, Malleus, Oobleck, PipeDream, PipeEdge, Piper, Sailor.

A folder each. Front doors: `sailor.planner`, `piper.planner`, `pipedream.planner`.
"""
