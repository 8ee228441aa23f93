"""The Gymnasium environments: stage by stage, layer by layer, node by node.

Front door: `heterps_envs.registration` (the ids); each has `env` and `vector_env`.
"""
