"""Which curves share a chart on TensorBoard's page Custom Scalars."""

from __future__ import annotations

from typing import NamedTuple


class Chart(NamedTuple):
    """Several curves in one.

    Attributes:
        title: Above it.
        tags: Patterns, each from the start of a tag on, as `re.match` takes them.
    """

    title: str
    tags: tuple[str, ...]


class Layout(NamedTuple):
    """The charts of one command.

    Attributes:
        title: Above them all. TensorBoard puts charts of runs with equal titles together.
        charts: In their order.
    """

    title: str
    charts: tuple[Chart, ...]
