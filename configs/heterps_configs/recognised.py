"""What a file is that is no document of the kind that was asked for, and what takes it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple


class _Look(NamedTuple):
    """How files of one kind are told from all others.

    Attributes:
        document: Name of its class; empty for what is none.
        fields: That all of them have.
        words: What it is.
        hint: What takes it.
        several: Which of the fields lists mappings: trainings have a pair of numbers there.
    """

    document: str
    fields: frozenset[str]
    words: str
    hint: str
    several: str | None = None


# The first that fits.
_LOOKS = (
    _Look(
        "RunResult",
        frozenset({"losses", "step_times_s", "generations"}),
        "the result of a run",
        "`heterps report` takes the folder that it is in; the last plan is its field final_plan",
    ),
    _Look(
        "",
        frozenset({"requested_planner", "plan", "estimate"}),
        "what `heterps place --json` printed",
        "`heterps place -o plan.yaml` writes a plan",
    ),
    _Look(
        "",
        frozenset({"rows", "bound_is_proven"}),
        "what `heterps compare --json` printed",
        "`heterps report` takes it, in a file that ends in .json",
    ),
    _Look(
        "",
        frozenset({"earliest_finish_step_time_s"}),
        "what `heterps place-graph` wrote",
        "it is there to be read: no command takes it",
    ),
    _Look(
        "Plan",
        frozenset({"pipelines", "stages", "job"}),
        "a plan",
        "`heterps simulate`, `run`, `report` and `export` take it",
    ),
    _Look(
        "OperatorGraph",
        frozenset({"nodes", "edges", "num_accelerators"}),
        "an operator graph",
        "`heterps place-graph` takes it",
    ),
    _Look("Cluster", frozenset({"nodes", "name"}), "a cluster", "--cluster takes it", "nodes"),
    _Look(
        "ModelProfile",
        frozenset({"layers", "name"}),
        "a model profile",
        "commands take it as MODEL",
        "layers",
    ),
)


def other_kind(document: str, data: Mapping[str, Any]) -> str | None:
    """What broken data of one kind is instead, in a sentence; None where it may be of that kind.

    Args:
        document: Name of the class that was asked for.
        data: What a file holds.
    """
    look = next((look for look in _LOOKS if _is_like(look, data)), None)
    if look is None or look.document == document:
        return None
    wanted = re.sub(r"(?<!^)([A-Z])", r" \1", document).lower()
    return f"is {look.words}, no {wanted}; {look.hint}"


def _is_like(look: _Look, data: Mapping[str, Any]) -> bool:
    if not look.fields <= data.keys():
        return False
    several = data[look.several] if look.several else [{}]
    return isinstance(several, list) and bool(several) and isinstance(several[0], dict)
