"""Planners of papers: each method as it was published, on our problems.

AMP, AutoHete, Cephalo, DT-FM (`dtfm`), HAP, HARP, HeterPS, HetPipe, HexiScale, Malleus, Metis,
Oobleck, PipeDream, PipeEdge, Piper, Sailor, Tangram, Whale.
A folder each: the method as it was published, and `system.py`, which answers our problems with it.
Front doors: `sailor.system`, `oobleck.system`, `malleus.system`. A new system is a folder with an
`interface.system.System` under `registry.register`, a line in the registry's table of systems, and
its paper, with the numbers that are reproduced here, in `interface.papers`.
"""
