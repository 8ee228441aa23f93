"""The Gymnasium environments, a folder each: stage, layer, graph; and their base.

Front door: `heterps_envs.registration` (the ids). In each folder: `env` (Gymnasium),
`vector_env` (hundreds at once for stable-baselines3), `episodes` (what both share), `kernels`
(one decision, compiled: features and step), `state` (the arrays, the size of an observation).
"""
