"""Carries out a device's action list, in torch.distributed or in one process.

Front door: `executor`.
"""
