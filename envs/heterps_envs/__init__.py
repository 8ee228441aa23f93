"""The simulated world: what a plan costs, and the environments to learn plans in.

Front door: `problem.Problem` (profile, cluster and job as cost tables). Nothing here decides:
planners are in `heterps_agents`. Nothing here imports torch, but `environments.base.vector_env`
through stable-baselines3.
"""

from heterps_envs.kernel_cache import choose_folder

# Before any kernel is defined.
choose_folder()
