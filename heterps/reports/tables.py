"""Tables for the terminal; they only show, they compute nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.table import Table

from heterps.micro_batches.place_result import PlaceResult, SearchedBeside, TriedSize
from heterps.planning.explanation import Alternative, ExplainedStage, Explanation
from heterps.reports.console import answer, interval_text, percent_text, seconds_text
from heterps.reports.folding import folded_names, idle_text, stage_groups
from heterps.reports.profile_tables import parameters_text
from heterps_agents.finishing.idle_devices import HELPS, IdleClass, Why
from heterps_agents.finishing.lifted_limits import FACTORS, Limit
from heterps_configs.documents.base import compute_format
from heterps_configs.units import bytes_text
from heterps_envs.options import StageOption
from heterps_envs.problem import Problem
from heterps_envs.simulator.interval import unmeasured_types

# Narrower terminals have no room for the names of layers beside what matters more.
WIDTH_FOR_NAMES, LEAST_WIDTH_OF_NAMES = 110, 20
NOT_ALLOWED = (
    "micro-batches, places for groups on a node or the floor allow no plan with more of them"
)
NOTHING_FOUND: dict[Why, str] = {
    "unknown": "not looked at: stages are no equal replicas",
    "memory": "no layer fits beside what a device keeps free",
    "none": NOT_ALLOWED,
    "limited": NOT_ALLOWED,
}
LIFTED_WORDS: dict[Limit, str] = {
    "samples": f"{FACTORS['samples']} x the batch",
    "links": f"links {FACTORS['links']} x as fast",
    "memory": f"{FACTORS['memory']} x the memory",
}


def stages_table(result: PlaceResult, width: int = WIDTH_FOR_NAMES) -> Table:
    """One row for each stage, its replicas on equal devices together, with the fullest's memory.

    What a device has is what plans may use of it, as everywhere else: not what fragments take.

    Args:
        result: What `place` returned.
        width: Columns of the terminal; narrow ones leave out the names of layers.
    """
    table = _stages_table(result, 0)
    if width < WIDTH_FOR_NAMES:
        return table
    # Names are cut where the rest of a line ends, so that every figure is whole.
    used = answer.measure(table, options=answer.options.update_width(width)).maximum
    left = width - used - 2
    return _stages_table(result, left) if left >= LEAST_WIDTH_OF_NAMES else table


def _stages_table(result: PlaceResult, width_of_names: int) -> Table:
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
    groups = stage_groups(problem, plan)
    has_ways = any(group.way for group in groups)
    if has_ways:
        table.add_column("carried out")
    if width_of_names:
        table.add_column("from .. to", overflow="ellipsis", no_wrap=True, max_width=width_of_names)
    for group in groups:
        used = max(result.estimate.memory_bytes[name] for name in group.devices)
        has = min(result.estimate.memory_limit_bytes[name] for name in group.devices)
        cells = [
            group.label,
            folded_names(group.devices),
            group.type,
            group.layers,
            f"{bytes_text(used)} of {bytes_text(has)}",
            *([group.way] if has_ways else []),
            f"{layers[group.first_layer].name} .. {layers[group.last_layer].name}",
        ]
        table.add_row(*cells[: len(table.columns)])
    return table


def explanation_table(explanation: Explanation) -> Table:
    """Why each stage is carried out as it is; stages that follow one another as one where alike.

    Args:
        explanation: With stages.
    """
    title = "what one other choice for a stage would cost; all else stays"
    table = Table(title=title, title_justify="left", box=None)
    for heading in ("layers", "type", "carried out", "nearest other choice", "step time then"):
        table.add_column(heading)
    runs: list[tuple[tuple[str, ...], list[ExplainedStage]]] = []
    for stage in explanation.stages:
        other = stage.runner_up
        words = (
            stage.device_type,
            _way_text(stage, stage) + (f" x {stage.num_replicas}" * (stage.num_replicas > 1)),
            "none is allowed" if other is None else _way_text(stage, other),
        )
        does_fit = other is not None and other.step_time_s is not None and not other.over_bytes
        key = (*words, "" if does_fit else _misfit_text(other))
        if runs and runs[-1][0] == key:
            runs[-1][1].append(stage)
        else:
            runs.append((key, [stage]))
    for (*cells, misfit), stages in runs:
        layers = f"{stages[0].first_layer}-{stages[-1].last_layer}"
        if len(stages) > 1:
            layers += f", {len(stages)} stages"
        table.add_row(layers, *cells, misfit or _then_text(explanation.step_time_s, stages))
    return table


def _way_text(stage: ExplainedStage, way: ExplainedStage | Alternative) -> str:
    """How a stage is carried out, or would be."""
    count = way.num_sharded_layers
    return option_text(way.option, "" if count in (0, stage.num_layers) else f" {count} layers")


def dropped_lines(problem: Problem, explanation: Explanation) -> list[str]:
    """Options that planners left out, one line for each reason, with the device types."""
    found: dict[tuple[str, str], dict[str, None]] = {}
    for each in explanation.dropped:
        beside = "" if each.by is None else f"beside {option_text(each.by)} "
        key = option_text(each.option), f"{beside}{each.why}"
        kind = problem.classes[each.option.device_class].type.name
        found.setdefault(key, {})[kind] = None
    return [
        f"not tried: {option} on {', '.join(kinds)}: {why}"
        for (option, why), kinds in found.items()
    ]


def size_lines(explanation: Explanation) -> list[str]:
    """Sizes of micro-batches that were looked at, one line each: what was found, or why nothing."""
    found = [each.found for each in explanation.sizes if each.found is not None]
    least = max(min(found, default=0.0), 1e-30)
    lines = []
    for each in explanation.sizes:
        if each.size == explanation.micro_batch_size:
            text = f"chosen, {seconds_text(explanation.step_time_s)}"
        elif each.found is not None:
            more = percent_text(each.found / least - 1, 1, is_change=True)
            text = f"the best found costs {more}"
        else:
            text = each.why + _outlook_text(explanation, each)
        lines.append(f"micro-batch {each.size}: {text}")
    return lines


def idle_lines(problem: Problem, idle: Sequence[IdleClass]) -> list[str]:
    """Why devices have nothing to do, a line for each class."""
    lines = []
    for each in idle:
        names = folded_names(each.devices)
        reason = f"{_found_text(problem, each)}{_limits_text(each)}"
        lines.append(f"idle: {len(each.devices)} {each.device_type} ({names}): {reason}")
    return lines


def _found_text(problem: Problem, idle: IdleClass) -> str:
    found = idle.found
    if found is None:
        return NOTHING_FOUND[idle.why]
    if found.over_bytes:
        return f"no plan with them fits: the nearest lacks {bytes_text(found.over_bytes)}"
    stage = found.stage
    layers = f"layers {stage.first_layer}-{stage.last_layer}"
    group = f", tensor parallel {stage.degree}" if stage.degree > 1 else ""
    change = percent_text(found.cost / idle.plan_cost - 1, 1, is_change=True)
    is_price = problem.job.objective == "price"
    cost = f"{found.cost:.5g} USD a million samples" if is_price else seconds_text(found.cost)
    takes = "costs" if is_price else "takes"
    told = f"{found.num_devices} of them ({layers} x {stage.replicas}{group})"
    if idle.why == "missed":
        return f"a better plan, which was not found, has {told} and {takes} {cost} ({change})"
    slower = f", these layers {found.slowness:.3g} x as long there" if found.slowness > 1 else ""
    return f"the best plan found with {told} {takes} {cost} ({change}){slower}"


def _limits_text(idle: IdleClass) -> str:
    helpful = [
        f"{LIFTED_WORDS[each.limit]} ({percent_text(-each.saves, 1, is_change=True)})"
        for each in idle.lifted
        if each.saves > HELPS
    ]
    if helpful:
        return f"; they would pay with {' or '.join(helpful)}"
    if idle.why != "slow":
        return ""
    tried = ", ".join(LIFTED_WORDS[each.limit] for each in idle.lifted)
    return f"; with {tried} no gain was found either"


def _outlook_text(explanation: Explanation, size: TriedSize) -> str:
    """Bound and simple placements of a size, beside what the plan costs."""
    chosen = next(e for e in explanation.sizes if e.size == explanation.micro_batch_size)
    words = []
    for name, cost in (("bound", size.bound), ("simple placements", size.promised)):
        if math.isfinite(cost) and chosen.found:
            words.append(f"{name} {cost / chosen.found:.3g} x")
    return f" ({', '.join(words)} of what was chosen)" if words else ""


def option_text(option: StageOption, sharded_part: str = "") -> str:
    """A way to carry out a stage, in words; with what part of it is sharded, where not all is."""
    texts = [f"tensor parallel {option.degree}"] if option.degree > 1 else []
    texts += [option.memory] if option.memory != "keep" else []
    texts += [f"state sharded{sharded_part}"] if option.shards_state else []
    return ", ".join(texts) or "one device that keeps all"


def _misfit_text(other: Alternative | None) -> str:
    if other is None:
        return ""
    if other.step_time_s is None:
        return "no devices for it"
    return f"does not fit: {bytes_text(other.over_bytes)} over"


def _then_text(step_s: float, stages: Sequence[ExplainedStage]) -> str:
    """The step time with the runner-up; of several stages from the least to the most."""
    found = [stage.runner_up for stage in stages]
    times = sorted(each.step_time_s for each in found if each and each.step_time_s is not None)
    if not times:
        return ""
    changes = [percent_text(value / step_s - 1, 1, is_change=True) for value in times]
    if changes[0] == changes[-1]:
        return f"{seconds_text(times[-1])} ({changes[-1]})"
    return f"{seconds_text(times[0])} to {seconds_text(times[-1])} ({changes[0]} to {changes[-1]})"


def job_text(problem: Problem, *, has_open_size: bool = False) -> str:
    """What is placed: batch, samples, formats, schedule, and the model's size.

    Args:
        problem: The problem.
        has_open_size: Each planner chooses the size of micro-batches.
    """
    job, profile, source = problem.job, problem.profile, problem.profile.source
    batch = f"batch {job.global_batch_size} in {job.num_micro_batches} micro-batches of up to "
    batch += str(job.micro_batch_size)
    if job.num_micro_batches * job.micro_batch_size == job.global_batch_size:
        batch = batch.replace("up to ", "")
    if has_open_size:
        batch = f"batch {job.global_batch_size} in micro-batches of each planner's choice"
    inputs = () if source is None else source.inputs
    shapes = [f"{each.name} {'x'.join(map(str, each.shape)) or 'scalar'}" for each in inputs]
    goal = "" if job.objective == "throughput" else f", for the least {job.objective}"
    if job.min_throughput_samples_per_s is not None:
        goal += f" from {job.min_throughput_samples_per_s:g} samples/s on"
    return (
        f"{batch}{', samples of ' + ' and '.join(shapes) if shapes else ''}, {job.dtype}, "
        f"{job.optimizer}, {job.schedule}{goal}; {profile.num_layers} layers, "
        f"{parameters_text(profile)}"
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


def _search_text(search: SearchedBeside) -> str:
    """Who searched in one of several processes, and what came of it."""
    name = f"{search.planner} (seed {search.seed})" if search.seed else search.planner
    if search.step_time_s is None:
        return f"{name}: {search.why or 'no plan'}"
    return f"{name} {seconds_text(search.step_time_s)}"


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
    if result.searches:
        lines.append(f"searches      {'; '.join(map(_search_text, result.searches))}")
    if result.own_cost is not None:
        own_s, of, _ = result.own_cost
        lines.append(f"own cost      {seconds_text(own_s)} a {of}, predicted by {plan.planner}")
    if idle:
        lines.append(f"idle          {idle}")
    hint = dtype_hint(result.problem)
    if hint is not None:
        lines.append(f"hint          {hint}")
    return [*lines, *(f"note          {note}" for note in shown.notes)]
