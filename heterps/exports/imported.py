"""A split that another tool runs today, as a plan: to be simulated and compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from heterps.exports.predicted import one_by_one_text
from heterps.exports.read_accelerate import places_of_layers, read_device_map
from heterps.exports.read_megatron import MegatronArguments, read_megatron
from heterps.exports.shape import Blocks, blocks_of
from heterps_configs.documents.job import Job
from heterps_configs.documents.plan import LayerRange, Pipeline, Plan
from heterps_configs.documents.stage import Stage
from heterps_configs.errors import HeterpsError, UnknownNameError
from heterps_envs.closed_form.bounds import bound_for
from heterps_envs.closed_form.placement import check_plan
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import simulated_step_time_s

SOURCES = ("accelerate", "megatron")


def import_plan(
    problem: Problem, path: Path, source: str, devices: Sequence[str] | None = None
) -> tuple[Problem, Plan]:
    """Reads a split.

    Args:
        problem: Model, cluster and job; sizes of batches that the file names win, and where it has
            several stages for a rank, its 1F1B is interleaved.
        path: The file.
        source: One of `SOURCES`.
        devices: Names in the order of the tool's ranks, or places; by default the cluster's.

    Returns:
        The problem with the file's sizes, and the plan, with its simulated step time and a bound.

    Raises:
        UnknownNameError: There is no such source, or no such device.
        HeterpsError: The file cannot be read, or does not fit the model or the cluster.
    """
    if source not in SOURCES:
        raise UnknownNameError("source", source, list(SOURCES))
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is no text"
        raise HeterpsError(f"{path}: {reason or 'cannot be read'}") from None
    known = [device.name for device in problem.cluster.devices]
    for name in devices or ():
        if name not in known:
            raise UnknownNameError("device", name, known)
    twice = [name for name, times in Counter(devices or ()).items() if times > 1]
    if twice:
        raise HeterpsError(f"--devices: {', '.join(twice)} stands there twice")
    if source == "megatron":
        blocks = blocks_of(problem.profile, "megatron")
        arguments = read_megatron(text, len(blocks), str(path))
        problem = _with_job_of(problem, arguments, str(path))
        plan = _of_megatron(problem, blocks, arguments, devices or known, str(path))
    else:
        plan = _of_accelerate(problem, read_device_map(text, str(path)), devices, str(path))
    check_plan(problem, plan)
    plan = plan.changed(predicted_step_time_s=simulated_step_time_s(problem, plan))
    return problem, plan.changed(bound=bound_for(problem, plan))


def assumed_notes(problem: Problem, plan: Plan, source: str) -> tuple[str, ...]:
    """What the simulator takes for granted of an imported plan, and the file does not say.

    Args:
        problem: With its job.
        plan: Of `import_plan`.
        source: One of `SOURCES`.
    """
    if source != "accelerate" or len(plan.stages) == 1:
        return ()
    return (
        f"a device_map has no schedule: this is {plan.job.schedule} with micro-batches of "
        f"{plan.job.micro_batch_size}; {one_by_one_text(problem, plan)}",
    )


def _with_job_of(problem: Problem, arguments: MegatronArguments, path: str) -> Problem:
    """Sizes that the file names win; ranks with several stages can only interleave them there."""
    is_interleaved = len(arguments.blocks) > arguments.pipeline and problem.job.schedule == "1f1b"
    told = {
        "micro_batch_size": arguments.micro_batch_size,
        "global_batch_size": arguments.global_batch_size,
        "schedule": "interleaved" if is_interleaved else None,
    }
    known = {name: value for name, value in told.items() if value is not None}
    return replace(problem, job=Job.from_mapping(problem.job.to_mapping() | known, path))


def _of_megatron(
    problem: Problem,
    blocks: Blocks,
    arguments: MegatronArguments,
    devices: Sequence[str],
    path: str,
) -> Plan:
    """Ranks as Megatron counts them: tensor groups first, then replicas, then stages."""
    degree, size = arguments.tensor_parallel, arguments.pipeline
    num_replicas, rest = divmod(len(devices), degree * size)
    count = problem.job.num_micro_batches
    if rest or not num_replicas:
        raise HeterpsError(
            f"{path}: {size} stages in groups of {degree} take a multiple of {degree * size} "
            f"devices, and there are {len(devices)}; --devices names those that are used"
        )
    if problem.job.global_batch_size % (problem.job.micro_batch_size * num_replicas):
        raise HeterpsError(
            f"{path}: {num_replicas} replicas cannot share a step of "
            f"{problem.job.global_batch_size} samples in micro-batches of "
            f"{problem.job.micro_batch_size} equally; --devices names those that are used"
        )
    stages, pipelines = list[Stage](), list[Pipeline]()
    ranges = _ranges(blocks, arguments.blocks, path)
    for replica in range(num_replicas):
        names = []
        for index, (first, last) in enumerate(ranges):
            group = (index % size * num_replicas + replica) * degree
            name = f"s{index}" + (f"r{replica}" if num_replicas > 1 else "")
            own = [each for each in range(first, last + 1) if blocks.number[each] is not None]
            stages.append(
                Stage(
                    name=name,
                    first_layer=first,
                    last_layer=last,
                    devices=tuple(devices[group : group + degree]),
                    recompute_layers=tuple(own[: arguments.recomputed]),
                )
            )
            names.append(name)
        micro_batches = tuple(range(replica, count, num_replicas))
        pipelines.append(Pipeline(stages=tuple(names), micro_batches=micro_batches))
    shared = arguments.shards_state and num_replicas > 1
    sharded = tuple(LayerRange(first_layer=a, last_layer=b) for a, b in ranges) if shared else ()
    plan = _plan(problem, stages, pipelines, "megatron")
    return plan.changed(sharded_state=sharded)


def _ranges(blocks: Blocks, counts: Sequence[int], path: str) -> list[tuple[int, int]]:
    """First and last layer of each stage; what stands before the blocks is with the first."""
    layer_of = [index for index, number in enumerate(blocks.number) if number is not None]
    ends, done = list[int](), 0
    for count in counts:
        done += count
        ends.append(layer_of[done - 1] if done else layer_of[0] - 1)
    ends[-1] = len(blocks.number) - 1
    starts = [0, *(end + 1 for end in ends[:-1])]
    for number, (first, last) in enumerate(zip(starts, ends, strict=True)):
        if first > last:
            raise HeterpsError(f"{path}: stage {number} has no layer of the profile")
    return list(zip(starts, ends, strict=True))


def _of_accelerate(
    problem: Problem, device_map: dict[str, int | str], devices: Sequence[str] | None, path: str
) -> Plan:
    """One chain, one copy of the model: a device may come again further behind."""
    places = places_of_layers(problem.profile, device_map, path)
    numbers = sorted({place for place in places if isinstance(place, int)})
    used: list[int | str] = [*numbers, *(["cpu"] if "cpu" in places else [])]
    if devices is None:
        by_kind = {
            kind: [d.name for d in problem.cluster.devices if d.type.kind == kind]
            for kind in ("gpu", "cpu")
        }
        devices = by_kind["gpu"][: len(numbers)] + by_kind["cpu"][: len(used) - len(numbers)]
    if len(devices) != len(used):
        raise HeterpsError(
            f"{path}: its places are {', '.join(map(str, used))}; --devices, or the cluster, has "
            f"{len(devices)} devices for them, and there must be {len(used)}"
        )
    device_of = dict(zip(used, devices, strict=True))
    stages, first = list[Stage](), 0
    for place, layers in groupby(places):
        last = first + len(list(layers)) - 1
        name = f"s{len(stages)}"
        stages.append(
            Stage(name=name, first_layer=first, last_layer=last, devices=(device_of[place],))
        )
        first = last + 1
    count = problem.job.num_micro_batches
    names = tuple(stage.name for stage in stages)
    chain = Pipeline(stages=names, micro_batches=tuple(range(count)))
    return _plan(problem, stages, [chain], "accelerate")


def _plan(
    problem: Problem, stages: Sequence[Stage], pipelines: Sequence[Pipeline], planner: str
) -> Plan:
    return Plan(
        model=problem.profile.name,
        model_reference=problem.model_reference,
        model_fingerprint=problem.profile.layers_fingerprint(),
        num_layers=problem.profile.num_layers,
        cluster=problem.cluster.name,
        cluster_reference=problem.cluster_reference,
        job=problem.job,
        stages=tuple(stages),
        pipelines=tuple(pipelines),
        planner=planner,
    )
