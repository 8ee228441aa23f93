"""How policies are trained, imitation first and PPO after it, and judged meanwhile.

Front door: `train.train`. Imports torch and stable-baselines3; what is learned from is
`heterps_envs.environments`.
"""
