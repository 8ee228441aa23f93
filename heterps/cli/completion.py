"""What the shell completes: shipped names, names of planners, and the choices of options.

A shell waits for this at every press of a key, so nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

Completion = Callable[[str], list[str]]


def one_of(*choices: str) -> Completion:
    """Completes to one of some words."""
    return lambda incomplete: _beginning_with(incomplete, choices)


def names_of(kind: str) -> Completion:
    """Completes to what has a name among the files of a kind; paths are left to the shell."""

    def complete(incomplete: str) -> list[str]:
        from heterps_configs import library

        return _beginning_with(incomplete, library.known(kind))

    return complete


def planners(incomplete: str) -> list[str]:
    """Completes the last of some planners and systems with commas between them."""
    from heterps_agents.interface.registry import planner_names, system_names

    before, comma, last = incomplete.rpartition(",")
    names = _beginning_with(last, (*planner_names(), *system_names()))
    return [f"{before}{comma}{name}" for name in names]


def shipped_files(incomplete: str) -> list[str]:
    """Completes to anything that `heterps copy` copies."""
    from heterps_configs import library

    return _beginning_with(
        incomplete, [name for kind in library.KINDS for name in library.shipped(kind)]
    )


def _beginning_with(incomplete: str, names: Iterable[str]) -> list[str]:
    return sorted(name for name in names if name.startswith(incomplete))
