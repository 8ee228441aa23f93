"""A user's own model, loss, optimizer and loop under a plan.

Front door: `trainer.PipelineTrainer`.
"""
