"""What a target makes of a plan that it cannot express, as the simulator sees it."""

from __future__ import annotations

from dataclasses import replace

from heterps.exports.shape import first_chain
from heterps_configs.documents.plan import Bound, Pipeline, Plan
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import estimate


def samples_per_s_one_by_one(problem: Problem, plan: Plan) -> float:
    """Throughput where one micro-batch is on its way at a time, through the first pipeline."""
    job = problem.job
    alone = job.changed(
        global_batch_size=job.micro_batch_size, unequal_micro_batch_sizes=None, schedule="gpipe"
    )
    stages = first_chain(plan)
    single = plan.changed(
        job=alone,
        stages=stages,
        pipelines=(Pipeline(stages=tuple(s.name for s in stages), micro_batches=(0,)),),
        sharded_state=(),
        bound=Bound(),
    )
    found = estimate(replace(problem, job=alone), single)
    return job.micro_batch_size / found.step_time_s


def cost_text(problem: Problem, plan: Plan, samples_per_s: float) -> str:
    """What is predicted, beside the plan's own throughput."""
    own = estimate(problem, plan).throughput_samples_per_s
    return (
        f"predicted {samples_per_s:.4g} samples/s instead of the plan's {own:.4g} "
        f"({samples_per_s / own - 1:+.0%})"
    )
