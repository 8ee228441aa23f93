"""What a file is that is no document of the kind that was asked for, and what takes it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic import BaseModel


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
        "ComparedPlanners",
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


# What writes documents that users give; others are told their fields.
_WRITERS = {
    "Plan": "`heterps place -o plan.yaml` writes one",
    "Cluster": "`heterps discover` writes one",
    "ModelProfile": "`heterps profile` writes one",
    "OperatorGraph": "`heterps list` names those that are shipped",
}


def other_kind(document: type[BaseModel], data: Mapping[str, Any]) -> str | None:
    """What broken data of one kind is instead, in a sentence; None where it may be of that kind.

    Args:
        document: The class that was asked for.
        data: What a file holds.
    """
    look = next((look for look in _LOOKS if _is_like(look, data)), None)
    if look is None:
        return _foreign(document, data)
    if look.document == document.__name__:
        return None
    return f"is {look.words}, no {_words(document)}; {look.hint}"


def _foreign(document: type[BaseModel], data: Mapping[str, Any]) -> str | None:
    """That data is nothing of heterps: it lacks half of what is needed, and most is unknown."""
    writer = _WRITERS.get(document.__name__)
    needed = [name for name, field in document.model_fields.items() if field.is_required()]
    lacking, unknown = set(needed) - data.keys(), data.keys() - document.model_fields.keys()
    if writer is None or 2 * len(lacking) < len(needed) or 2 * len(unknown) <= len(data):
        return None
    return f"is no {_words(document)} of heterps, which has {', '.join(needed)}; {writer}"


def _words(document: type[BaseModel]) -> str:
    return re.sub(r"(?<!^)([A-Z])", r" \1", document.__name__).lower()


def _is_like(look: _Look, data: Mapping[str, Any]) -> bool:
    if not look.fields <= data.keys():
        return False
    several = data[look.several] if look.several else [{}]
    return isinstance(several, list) and bool(several) and isinstance(several[0], dict)
