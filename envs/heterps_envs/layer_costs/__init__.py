"""Seconds and bytes of a layer on a device, and how sure they are.

Front doors: `seconds.layer_times`, `memory.layer_memory`; for one device of a tensor-parallel
group: `tensor_parallel.split_profile`. How the bytes add up in a stage: `kept_memory`. The linear
rule by which planners count memory: `memory_rule`. Bytes of a whole stage and of a step over time:
`heterps_envs.simulator`.
"""
