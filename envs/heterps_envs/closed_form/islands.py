"""Devices that are linked with each other, where a cluster lacks links, and what they can hold.

The stages of a pipeline follow each other over links, and replicas of a stage sum their gradients
over them: so a plan never has devices of two islands.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from heterps_configs.documents.numbers import MOST_LATENCY_S
from heterps_envs.arrays import Integers
from heterps_envs.closed_form.layer_needs import layers_that_fit, least_layer_bytes
from heterps_envs.closed_form.memory_bounds import class_memory_bytes
from heterps_envs.closed_form.memory_search import is_searchable, most_covered
from heterps_envs.cost_tables import CostTables
from heterps_envs.problem import Problem


def islands_of(problem: Problem) -> list[frozenset[str]]:
    """The devices of a cluster, those together that are linked, be it over others or one way."""
    links = problem.links.by_node
    is_linked = links.latency_s <= MOST_LATENCY_S  # NaN: a node of one device
    is_linked |= is_linked.T
    inside = np.diagonal(is_linked) | (links.back_latency_s <= MOST_LATENCY_S)
    np.fill_diagonal(is_linked, inside)
    # Who is linked with a node is linked with its first device, as are all others of it.
    first_of_node = np.unique(links.node_of, return_index=True)[1]
    devices, nodes = np.nonzero(is_linked[links.node_of])
    edges = np.ones(len(devices)), (devices, first_of_node[nodes])
    size = len(links.node_of)
    count, island_of = connected_components(coo_array(edges, shape=(size, size)), directed=False)
    names = np.array([device.name for device in problem.cluster.devices])
    return [frozenset(names[island_of == island].tolist()) for island in range(count)]


def no_island_holds_it(problem: Problem, tables: CostTables) -> bool:
    """Whether there are several islands, and none has the memory that a model needs at least.

    Args:
        problem: What was asked.
        tables: Its own, or those of its options: no plan needs less than they say.
    """
    if not problem.cluster.lacks_links:
        return False
    islands = islands_of(problem)
    if len(islands) == 1:
        return False
    view = problem if tables.options is None else problem.views[-1]
    held = (_counts(view, island) for island in islands)
    return not any(
        may_hold(tables, counts) for counts in {each.tobytes(): each for each in held}.values()
    )


def _counts(view: Problem, island: frozenset[str]) -> Integers:
    """(T,) devices of each class that an island has."""
    return np.array([sum(d.name in island for d in entry.devices) for entry in view.classes])


def may_hold(tables: CostTables, counts: Integers) -> bool:
    """Whether so many devices of each class may have room for the model.

    Where `is_searchable`, they have, as planners count memory.

    Args:
        tables: The problem's.
        counts: (T,)
    """
    own = replace(tables, device_count=counts)
    devices, usable = own.stage_options.devices_of_option, layers_that_fit(own)
    usable &= own.most_replicas > 0
    need = np.where(usable, least_layer_bytes(own) * devices, np.inf)
    if need.min(axis=1).sum() > counts @ class_memory_bytes(own):
        return False
    return not is_searchable(own) or most_covered(own).first_layer == 0
