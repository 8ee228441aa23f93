"""Templates that wait for the next run that needs the same: it begins seconds sooner then."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple, Protocol

# Templates that wait at one time: each holds torch in memory.
MOST_WAITING = 2


class Waiting(Protocol):
    """What can wait: a template."""

    def is_alive(self) -> bool:
        """Whether it has not ended."""

    def end(self) -> None:
        """Ends it."""


class Asked(NamedTuple):
    """What makes templates alike.

    Attributes:
        module: That it has imported.
        folder: In which it works.
        variables: Of its environment.
    """

    module: str
    folder: str
    variables: Mapping[str, str]


class _Pool:
    """Those that wait, the newest last; `left_out` is None where none may."""

    def __init__(self) -> None:
        self.left_out: frozenset[str] | None = None
        self.waiting: list[tuple[Asked, Waiting]] = []


_pool = _Pool()


@contextmanager
def keeping_templates(left_out: Collection[str] = ()) -> Iterator[None]:
    """Within it templates that are left wait for others that ask for the same; at its end all end.

    A template that raised, or whose processes have not all ended, never waits.

    Args:
        left_out: Variables of the environment that no library reads when it is loaded.
    """
    if _pool.left_out is not None:  # within another one
        yield
        return
    _pool.left_out = frozenset(left_out)
    try:
        yield
    finally:
        _pool.left_out = None
        for _, template in _pool.waiting:
            template.end()
        _pool.waiting.clear()


def asked(module: str, environment: Mapping[str, str]) -> Asked:
    """What a template is told apart by."""
    left_out = _pool.left_out or frozenset()
    variables = {name: value for name, value in environment.items() if name not in left_out}
    return Asked(module, os.getcwd(), variables)


def take(wanted: Asked) -> Waiting | None:
    """One that waits, and does no more from now on."""
    for index, (own, template) in enumerate(_pool.waiting):
        if own == wanted and template.is_alive():
            del _pool.waiting[index]
            return template
    return None


def give(own: Asked, template: Waiting) -> bool:
    """Lets a template wait; False: none may."""
    if _pool.left_out is None:
        return False
    _pool.waiting.append((own, template))
    if len(_pool.waiting) > MOST_WAITING:
        _pool.waiting.pop(0)[1].end()
    return True
