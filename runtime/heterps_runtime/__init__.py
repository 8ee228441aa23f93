"""The real world: profiles models, runs plans, saves and moves state.

Front doors: `run.run_plan`, `profiling.profiler`, `own_loop.trainer.PipelineTrainer`. The
runtime never plans: it asks a callback for plans.
"""
