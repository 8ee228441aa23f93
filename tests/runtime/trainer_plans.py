"""Plans by their cuts alone, as a user may write them by hand."""

from __future__ import annotations

from heterps_configs.documents.job import Job
from heterps_configs.documents.plan import Pipeline, Plan, Stage


def plan_of_cuts(*cuts: int, num_layers: int = 5) -> Plan:
    """One stage and one device behind each cut; 16 samples in micro-batches of 4."""
    starts, ends = (0, *cuts), (*cuts, num_layers)
    stages = tuple(
        Stage(name=f"s{i}", first_layer=a, last_layer=b - 1, devices=(f"d{i}",))
        for i, (a, b) in enumerate(zip(starts, ends, strict=True))
    )
    job = Job(global_batch_size=16, micro_batch_size=4, dtype="float32")
    route = Pipeline(
        stages=tuple(stage.name for stage in stages),
        micro_batches=tuple(range(job.num_micro_batches)),
    )
    return Plan(
        model="mine",
        model_fingerprint="",
        num_layers=num_layers,
        cluster="here",
        job=job,
        stages=stages,
        pipelines=(route,),
    )
