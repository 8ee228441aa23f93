"""Tables for the terminal; they only show, they compute nothing."""

from __future__ import annotations

from rich.table import Table

from heterps.console import bytes_text, seconds_text
from heterps.placing import PlaceResult, describe_bound


def stages_table(result: PlaceResult) -> Table:
    """One row for each stage: device, layers, memory."""
    plan, problem = result.plan, result.problem
    devices = {device.name: device for device in problem.cluster.devices}
    layers = problem.profile.layers
    table = Table(title=f"{plan.model} on {plan.cluster}", title_justify="left")
    for heading in ("stage", "device", "type", "layers", "first", "last", "memory", "of"):
        table.add_column(heading, justify="right" if heading in {"memory", "of"} else "left")
    for stage in plan.stages:
        for name in stage.devices:
            table.add_row(
                stage.name,
                name,
                devices[name].type.name,
                f"{stage.first_layer}-{stage.last_layer}",
                layers[stage.first_layer].name,
                layers[stage.last_layer].name,
                bytes_text(result.estimate.memory_bytes[name]),
                bytes_text(devices[name].memory_bytes),
            )
    return table


def result_lines(result: PlaceResult) -> list[str]:
    """The estimate, the bound, and what they rest on."""
    shown, plan = result.estimate, result.plan
    idle = [d.name for d in result.problem.cluster.devices if d.name not in plan.devices]
    bubble = "" if shown.bubble_share is None else f", bubble {100 * shown.bubble_share:.0f} %"
    lines = [
        f"step time     {seconds_text(shown.step_time_s)} simulated{bubble}",
        f"throughput    {shown.throughput_samples_per_s:.5g} samples/s",
        f"price         {shown.price_usd_per_million_samples:.5g} USD per million samples",
        f"optimality    {describe_bound(result.bound)}"
        + (f" ({seconds_text(result.bound.step_time_s)})" if result.bound.step_time_s else ""),
        f"planner       {plan.planner}, {seconds_text(result.planning_s)}",
        f"layer times   {shown.layer_times}",
    ]
    if idle:
        lines.append(f"idle          {', '.join(idle)}")
    return lines
