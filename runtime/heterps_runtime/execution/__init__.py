"""Carries out a device's action list, in torch.distributed or in one process.

Front door: `executor.Executor`. The lists come from `heterps_envs.schedule`; what a pass
computes is in `heterps_runtime.stages`.
"""
