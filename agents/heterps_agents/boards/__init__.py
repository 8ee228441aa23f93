"""TensorBoard runs: what is shown first, curves that smoothing leaves alone, layouts.

Front door: `board.Board`, one run; `training.TrainingBoards`, the runs of a training. `curves` and
`layout` need no torch.
"""
