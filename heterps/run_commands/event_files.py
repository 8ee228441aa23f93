"""What `heterps run --events` names: files of events, spot traces, and whether they can happen."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from heterps_configs.documents.run_events import RunEvent
from heterps_configs.documents.run_settings import RunSettings
from heterps_configs.errors import DocumentError, HeterpsError
from heterps_configs.library import load_run_events
from heterps_runtime.specification.build import check_slowdown

if TYPE_CHECKING:
    from heterps.online.spot_run import SpotRun
    from heterps_configs.documents.plan import Plan
    from heterps_envs.problem import Problem

SPOT_TRACE_SUFFIX = ".csv"


def read_events(
    references: Sequence[str], settings: RunSettings
) -> tuple[tuple[RunEvent, ...], SpotRun | None]:
    """Events of all files together, and a spot trace where one of them is one (`.csv`).

    Raises:
        HeterpsError: A file is bad, or there are two spot traces.
    """
    traces = [Path(name) for name in references if name.endswith(SPOT_TRACE_SUFFIX)]
    events = tuple(
        event for name in _event_files(references) for event in load_run_events(name).events
    )
    if not traces:
        return events, None
    if len(traces) > 1:
        raise HeterpsError(f"--events {traces[1]}: is a second spot trace; one is allowed")
    from heterps.online.spot_run import SpotRun

    return events, SpotRun.of(traces[0], settings.elastic.compress)


def check_events(
    references: Sequence[str], problem: Problem, plan: Plan, steps: int, *, is_elastic: bool
) -> None:
    """Refuses events that cannot be, with the file and the field; warns of those that never come.

    Args:
        references: As of `read_events`; spot traces check themselves.
        problem: Whose cluster has the devices.
        plan: What runs first.
        steps: Of the run, from the beginning of training.
        is_elastic: Devices may be lost, and come.

    Raises:
        DocumentError: With all of them.
    """
    for name in _event_files(references):
        events = load_run_events(name).events
        problems = [
            f"events.{index}.{event.kind}: {text}"
            for index, event in enumerate(events)
            for text in _problems(event, problem, plan, is_elastic)
        ]
        if problems:
            raise DocumentError(name, problems)
        for index, event in enumerate(events):
            # A device may still be lost when the last step is done, before the last checkpoint.
            if event.step is not None and event.step >= steps + (event.slow is None):
                warnings.warn(
                    f"{name}: events.{index}.step: {event.step}, but the run ends after {steps} "
                    "steps: the event never comes",
                    stacklevel=2,
                )


def _event_files(references: Sequence[str]) -> list[str]:
    return [name for name in references if not name.endswith(SPOT_TRACE_SUFFIX)]


def _problems(event: RunEvent, problem: Problem, plan: Plan, is_elastic: bool) -> Iterator[str]:
    """What is wrong with an event, in words."""
    known = problem.device_named
    unknown = [device for device in event.link or (event.subject,) if device not in known]
    for device in unknown:
        yield (
            f"no device {device!r} in the cluster {problem.cluster.name!r}; "
            f"it has {', '.join(known)}"
        )
    if unknown:
        return
    if event.slow is None:
        if not is_elastic:
            yield "needs --elastic"
        return
    try:
        check_slowdown(problem, plan, event)
    except HeterpsError as error:
        yield str(error)
