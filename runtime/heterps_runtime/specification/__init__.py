"""What a run is: plan, devices, hosts, checkpoints, as one document for all ranks.

Front door: `run`.
"""
