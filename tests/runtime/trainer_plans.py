"""Plans by their cuts alone, as a user may write them by hand."""

from __future__ import annotations

from heterps_configs.documents.job import Job
from heterps_configs.documents.plan import LayerRange, Pipeline, Plan
from heterps_configs.documents.stage import Stage


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


def replicas_of_groups() -> Plan:
    """Two groups of two devices with all five layers each, which share their optimizer's state."""
    alone = plan_of_cuts()
    (stage,), (route,) = alone.stages, alone.pipelines
    groups = {"a": ("d0", "d1"), "b": ("d2", "d3")}
    return alone.changed(
        stages=tuple(
            stage.changed(
                name=name, devices=devices, tensor_shares=(0.25, 0.75), recompute_layers=(1, 3)
            )
            for name, devices in groups.items()
        ),
        pipelines=tuple(
            route.changed(stages=(name,), micro_batches=route.micro_batches[i::2])
            for i, name in enumerate(groups)
        ),
        sharded_state=(LayerRange(first_layer=0, last_layer=4),),
    )


def chain_of_groups(cut: int, num_layers: int) -> Plan:
    """Two stages on a group of two devices each."""
    alone = plan_of_cuts(cut, num_layers=num_layers)
    stages = (
        stage.changed(devices=(f"d{2 * i}", f"d{2 * i + 1}"))
        for i, stage in enumerate(alone.stages)
    )
    return alone.changed(stages=tuple(stages))
