"""Stage options: ways to carry out a stage on a class of devices, and their costs.

An option is a class, a tensor-parallel degree, what is done with activations (kept, computed again,
or offloaded to the host), and whether replicas divide the optimizer state. A strategy says which of
them a planner may choose. Without any, tables have one option for each class: one device that keeps
all.

Front doors: `allowed.options_of`, `tables.option_tables`, `bounding.bounding_tables`.
"""

from heterps_envs.options.allowed import (
    all_groups,
    allows_unlike_groups,
    has_unlike_groups,
    keeps_to,
    options_of,
    some_groups,
)
from heterps_envs.options.bounding import bounding_tables
from heterps_envs.options.option import MAX_OPTIONS, Memory, StageOption
from heterps_envs.options.tables import option_tables

__all__ = [
    "MAX_OPTIONS",
    "Memory",
    "StageOption",
    "all_groups",
    "allows_unlike_groups",
    "bounding_tables",
    "has_unlike_groups",
    "keeps_to",
    "option_tables",
    "options_of",
    "some_groups",
]
