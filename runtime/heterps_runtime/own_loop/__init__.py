"""A user's own model, loss and loop under a plan.

Front door: `trainer.PipelineTrainer`.
"""
