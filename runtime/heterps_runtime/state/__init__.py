"""Checkpoints and moves of state, by parameter name.

Front doors: `checkpointer.Checkpointer` saves, `checkpoint.restore` loads, `transfer.Transfer`
moves. What a checkpoint holds: `checkpoint.TrainingState`; how its tensors are named: `layout`.
"""
