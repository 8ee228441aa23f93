"""Placement by a trained policy: scores, beams, windows, efforts; in NumPy.

Front door: `search.learned_code`. Training is in `heterps_agents.training`; features of a
decision are the environment's (`heterps_envs.environments.stage`).
"""
