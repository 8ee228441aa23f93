"""What a run measured beside what was predicted: steps, messages, result.

Front door: `observed_steps.ObservedSteps`, `result.RunResult`, `collect.collect`. The ranks of
`heterps_runtime.run` observe; their parent collects.
"""
