"""Which devices a planner need not look at: those whose memory holds no layer of the model."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np

from heterps_configs.documents.cluster import Cluster, Node
from heterps_configs.units import bytes_text
from heterps_envs.closed_form.layer_needs import layers_that_fit
from heterps_envs.closed_form.memory_bounds import class_memory_bytes
from heterps_envs.device_classes import DeviceClass
from heterps_envs.problem import Problem


def on_usable_devices(problem: Problem) -> Problem:
    """The problem without device classes that hold no layer; a warning names what is left out.

    Every planner begins with this. What planners keep free on a device (`MemoryRule`) depends on
    how many devices there are, so classes go one by one, the smallest memory first. Where no class
    holds a layer all stay: what is missing is then said of the whole cluster.
    """
    left, useless = problem, []
    while (worst := _useless_class(left)) is not None:
        if len(left.classes) == 1:
            return problem
        useless.append(worst)
        left = replace(left, cluster=_without(left.cluster, worst))
    for entry in useless:
        warnings.warn(
            f"{entry.count} {entry.name} left out: no layer fits in what a device of "
            f"{bytes_text(entry.devices[0].memory_bytes)} has beside its buffers",
            stacklevel=2,
        )
    return left


def _useless_class(problem: Problem) -> DeviceClass | None:
    """Of the classes that hold no layer the one with the least memory."""
    tables = problem.tables
    memory = class_memory_bytes(tables)
    fits = layers_that_fit(tables).any(axis=0) & (tables.memory_bytes > 0)
    holds = np.zeros(tables.num_classes, np.bool_)
    np.logical_or.at(holds, tables.stage_options.class_of_option, fits)
    if holds.all():
        return None
    return problem.classes[int(np.where(holds, np.inf, memory).argmin())]


def _without(cluster: Cluster, useless: DeviceClass) -> Cluster:
    """The cluster without the devices of a class, which are whole groups of a node."""
    gone = {device.name for device in useless.devices}
    kept: list[Node] = []
    for node in cluster.nodes:
        groups = [group for group in node.devices if gone.isdisjoint(group.device_names())]
        if groups:
            kept.append(node.changed(devices=groups))
    names = {node.name for node in kept}
    overrides = [entry for entry in cluster.link_overrides if names.issuperset(entry.between)]
    return cluster.changed(nodes=kept, link_overrides=overrides)
