"""Layers that use parameters of others, and have some of their own beside them."""

from __future__ import annotations

from dataclasses import replace

from heterps_envs.problem import Problem


def with_own(problem: Problem, layer: int, number: int) -> Problem:
    """The problem with so many more parameters of a layer, which no other one has."""
    layers = list(problem.profile.layers)
    more = layers[layer].num_parameters + number
    layers[layer] = layers[layer].changed(num_parameters=more)
    return replace(problem, profile=problem.profile.changed(layers=tuple(layers)))
