"""How other engines run a plan: the pipelines of DeepSpeed and Megatron.

Front doors: `megatron_runs.predicted_step_s`, `megatron_memory.predicted_memory_bytes`. They
predict what others measured (`benchmarks/fidelity`); our own runs are predicted by
`heterps_envs.simulator`.
"""
