"""accelerate: a `device_map` and `max_memory` for `dispatch_model`.

accelerate keeps one copy of the model and lets one batch at a time through its devices: replicas
are left out, and nothing overlaps.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from heterps.exports.formats import Exported
from heterps.exports.predicted import one_by_one_text
from heterps.exports.shape import first_chain
from heterps_configs.documents.plan import Plan
from heterps_configs.errors import HeterpsError
from heterps_envs.problem import Problem

if TYPE_CHECKING:
    from torch import nn

Place = int | str


def to_accelerate(problem: Problem, plan: Plan) -> Exported:
    """Files and remarks.

    Raises:
        HeterpsError: A stage is a group of devices, or the profile does not say how to build it.
    """
    stages = first_chain(plan)
    groups = [stage.name for stage in stages if stage.degree > 1]
    if groups:
        raise HeterpsError(
            f"accelerate: stage {groups[0]} is split over several devices; a device_map has whole "
            "modules on each (`heterps place --tensor-parallel 1`)"
        )
    places = _places(problem, [stage.devices[0] for stage in stages])
    device_of_layer = {i: stage.devices[0] for stage in stages for i in stage.layers}
    device_map = _device_map(problem, {i: places[name] for i, name in device_of_layer.items()})
    memory = {str(place): problem.usable_bytes(name) for name, place in places.items()}
    remarks = [one_by_one_text(problem, plan)]
    if any(isinstance(place, int) for place in places.values()):
        remarks.append("GPUs are numbers: make int of the keys that JSON has in max_memory.json")
    if len(plan.pipelines) > 1:
        remarks.append(f"only the first of {len(plan.pipelines)} pipelines is there")
    return Exported(
        {
            "device_map.json": json.dumps(device_map, indent=1) + "\n",
            "max_memory.json": json.dumps(memory, indent=1) + "\n",
        },
        tuple(remarks),
    )


def _places(problem: Problem, devices: list[str]) -> dict[str, Place]:
    """GPUs numbered in the order of the chain, as one process sees them; the CPU has one name."""
    places: dict[str, Place] = {}
    for name in devices:
        is_gpu = problem.device_named[name].type.kind == "gpu"
        number = sum(isinstance(place, int) for place in places.values())
        places.setdefault(name, number if is_gpu else "cpu")
    return places


def _device_map(problem: Problem, place_of_layer: Mapping[int, Place]) -> dict[str, Place]:
    """Modules as large as possible, each on one device."""
    from heterps_runtime.models.build import build_module
    from heterps_runtime.models.layers import layers_of, parameter_layers
    from heterps_runtime.models.recordings import record

    source = problem.profile.source
    if source is None:
        raise HeterpsError(f"accelerate: {problem.profile.name} does not say how it is built")
    module = build_module(source)
    layers = layers_of(record(source, module, problem.job.micro_batch_size))
    first_layer = {name: users[0] for name, users in parameter_layers(layers).items()}
    named = _layer_of_parameters(module, first_layer)
    place_of = {name: place_of_layer[layer] for name, layer in named.items()}
    for index, layer in enumerate(layers):
        for unit in layer.name.split("+"):
            if not any(name.startswith(f"{unit}.") for name in named):
                place_of.setdefault(f"{unit}.", place_of_layer[index])
    found: dict[str, Place] = {}
    _descend(module, "", place_of, place_of_layer[0], found)
    return found


def _layer_of_parameters(module: nn.Module, first_layer: Mapping[str, int]) -> dict[str, int]:
    """The layer where each parameter is, by all of its names.

    accelerate has a shared parameter on one device, with the whole of each module that has it.
    """
    name_of = {id(parameter): name for name, parameter in module.named_parameters()}
    layer_of = dict(first_layer)
    for part in module.modules():
        own = [name_of[id(parameter)] for parameter in part.parameters(recurse=False)]
        is_leaf = next(part.children(), None) is None
        for name in own if is_leaf else ():
            layer_of[name] = min(layer_of[other] for other in own)
    every = module.named_parameters(remove_duplicate=False)
    return {name: layer_of[name_of[id(parameter)]] for name, parameter in every}


def _descend(
    module: nn.Module,
    path: str,
    place_of: Mapping[str, Place],
    first: Place,
    found: dict[str, Place],
) -> None:
    """Puts a module where all its parameters are; else its children, one by one.

    What has none, and is no part of a layer, goes to the front: tables of positions.
    """
    inside = f"{path}." if path else ""
    own = {place for name, place in place_of.items() if name.startswith(inside)}
    if len(own) <= 1:
        found[path] = next(iter(own), first)
        return
    for name, _ in module.named_parameters(recurse=False):
        found[inside + name] = place_of[inside + name]
    for name, child in module.named_children():
        _descend(child, inside + name, place_of, first, found)
