"""How policies are trained, for chains and for graphs, and judged meanwhile.

Front door: `train.train`; `fine_tune.fine_tune` goes on from a policy. One run (`run`) trains any
`learner.Learner`: `chains` (imitation, then PPO) or `graphs`. Imports torch and stable-baselines3;
what is learned from is `heterps_envs.environments`.
"""
