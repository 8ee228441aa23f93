"""Tables for the terminal; they only show, they compute nothing."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from heterps.planning.place import PlaceResult
from heterps.reports.console import interval_text, percent_text, seconds_text
from heterps.reports.folding import folded_names, idle_text, stage_groups
from heterps_configs.documents.base import compute_format
from heterps_configs.documents.plan import Plan, Stage
from heterps_configs.units import bytes_text
from heterps_envs.problem import Problem
from heterps_envs.simulator.interval import unmeasured_types

# Narrower terminals have no room for the names of layers beside what matters more.
WIDTH_FOR_NAMES = 110


def stages_table(result: PlaceResult, width: int = WIDTH_FOR_NAMES) -> Table:
    """One row for each stage, its replicas on equal devices together, with the fullest's memory.

    Args:
        result: What `place` returned.
        width: Columns of the terminal; narrow ones leave out the names of layers.
    """
    plan, problem = result.plan, result.problem
    layers = problem.profile.layers
    table = Table(title=f"{plan.model} on {plan.cluster}", title_justify="left", box=None)
    for heading in ("stage", "device", "type", "layers", "memory"):
        # Only the names of many devices may take several lines.
        table.add_column(
            heading,
            justify="right" if heading == "memory" else "left",
            no_wrap=heading != "device",
        )
    ways = {stage.devices[0]: way_text(plan, stage) for stage in plan.stages}
    if any(ways.values()):
        table.add_column("carried out")
    if width >= WIDTH_FOR_NAMES:
        table.add_column("from .. to", overflow="ellipsis", no_wrap=True)
    for group in stage_groups(problem, plan):
        used = max(result.estimate.memory_bytes[name] for name in group.devices)
        has = min(problem.device_named[name].memory_bytes for name in group.devices)
        cells = [
            group.label,
            folded_names(group.devices),
            group.type,
            group.layers,
            f"{bytes_text(used)} of {bytes_text(has)}",
            *([ways[group.devices[0]]] if any(ways.values()) else []),
            f"{layers[group.first_layer].name} .. {layers[group.last_layer].name}",
        ]
        table.add_row(*cells[: len(table.columns)])
    return table


def way_text(plan: Plan, stage: Stage) -> str:
    """How a stage is carried out, where it is not one device that keeps all."""
    texts = [f"tensor parallel {stage.degree}"] if stage.degree > 1 else []
    if stage.recompute_layers:
        texts.append(f"recompute{_part(stage.recompute_layers, stage)}")
    if stage.offloaded_layers:
        texts.append(f"offload{_part(stage.offloaded_layers, stage)}")
    if any(entry.layers[0] in stage.layers for entry in plan.sharded_state):
        texts.append("state sharded")
    return ", ".join(texts)


def _part(chosen: Sequence[int], stage: Stage) -> str:
    return "" if len(chosen) == len(stage.layers) else f" {len(chosen)} layers"


def job_text(problem: Problem) -> str:
    """What is placed: batch, samples, formats, schedule, and the model's size."""
    job, profile, source = problem.job, problem.profile, problem.profile.source
    batch = f"batch {job.global_batch_size} in {job.num_micro_batches} micro-batches of up to "
    batch += str(job.micro_batch_size)
    if job.num_micro_batches * job.micro_batch_size == job.global_batch_size:
        batch = batch.replace("up to ", "")
    inputs = () if source is None else source.inputs
    shapes = [f"{each.name} {'x'.join(map(str, each.shape)) or 'scalar'}" for each in inputs]
    goal = "" if job.objective == "throughput" else f", for the least {job.objective}"
    if job.min_throughput_samples_per_s is not None:
        goal += f" from {job.min_throughput_samples_per_s:g} samples/s on"
    return (
        f"{batch}{', samples of ' + ' and '.join(shapes) if shapes else ''}, {job.dtype}, "
        f"{job.optimizer}, {job.schedule}{goal}; {profile.num_layers} layers, "
        f"{profile.num_parameters:,} parameters"
    )


def dtype_hint(problem: Problem) -> str | None:
    """Which devices would be faster in float16, where the job has bfloat16."""
    if compute_format(problem.job.dtype) != "bfloat16":
        return None
    types = {device.type.name: device.type for device in problem.cluster.devices}
    slow = [
        name
        for name, each in types.items()
        if "bfloat16" not in each.peak_flops_per_s and each.peak("float16") > each.peak("bfloat16")
    ]
    if not slow:
        return None
    return (
        f"{', '.join(slow)}: without bfloat16 in hardware, at the rate of float32; "
        "--dtype float16 may be faster"
    )


def result_lines(result: PlaceResult) -> list[str]:
    """The estimate, the bound, and what they rest on."""
    shown, plan = result.estimate, result.plan
    idle = idle_text(result.problem, plan.devices)
    bubble = "" if shown.bubble_share is None else f", bubble {percent_text(shown.bubble_share)}"
    types = unmeasured_types(result.problem, plan)
    sure = interval_text(shown.step_time_low_s, shown.step_time_high_s, types)
    lines = [
        f"job           {job_text(result.problem)}",
        f"step time     {seconds_text(shown.step_time_s)} simulated{sure}{bubble}",
        f"throughput    {shown.throughput_samples_per_s:.5g} samples/s",
        f"price         {shown.price_usd_per_million_samples:.5g} USD per million samples",
        f"optimality    {result.optimality(seconds_text)}",
        f"planner       {plan.planner}, {seconds_text(result.planning_s)}",
        f"layer times   {shown.layer_times}",
    ]
    if result.own_cost is not None:
        own_s, of = result.own_cost
        lines.append(f"own cost      {seconds_text(own_s)} a {of}, predicted by {plan.planner}")
    if idle:
        lines.append(f"idle          {idle}")
    hint = dtype_hint(result.problem)
    if hint is not None:
        lines.append(f"hint          {hint}")
    return [*lines, *(f"note          {note}" for note in shown.notes)]
