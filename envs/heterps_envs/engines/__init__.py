"""How other engines run a plan: DeepSpeed, Megatron.

Front door: `megatron_runs`.
"""
