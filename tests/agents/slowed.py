"""A problem some of whose devices have become slower."""

from __future__ import annotations

from collections.abc import Mapping

from heterps_envs.online.correction import StageMeasurement, correct
from heterps_envs.problem import Problem


def slowed_problem(problem: Problem, ratios: Mapping[str, float]) -> Problem:
    """The problem with every layer of a device slower by its ratio; missing: as before.

    Normal devices count as measured, too: otherwise one slow device speaks for all of its type.
    """
    measurements = []
    for name, kind in problem.class_of.items():
        forward_s = float(problem.tables.forward_s[:, kind].sum()) * ratios.get(name, 1.0)
        backward_s = float(problem.tables.backward_s[:, kind].sum()) * ratios.get(name, 1.0)
        last = problem.profile.num_layers - 1
        measurements.append(StageMeasurement(name, 0, last, forward_s, backward_s))
    return correct(problem, measurements)
