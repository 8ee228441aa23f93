"""The timeline as a Chrome trace: opens in Perfetto and in chrome://tracing.

One process for each estimate. Each device is one track of passes and waits, further tracks of the
messages that it sends, and a counter of its memory by kind. Arrows lead from a message to the pass
that needed it. The format: "Trace Event Format" of the Chromium project.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from heterps.reports.messages import Message, messages_of, sums_beside_passes
from heterps_configs.documents.estimate import Estimate, MemoryCurve, TimelineEvent
from heterps_configs.documents.plan import Plan
from heterps_configs.documents.yaml_files import write_text
from heterps_envs.problem import Problem

TraceEvent = dict[str, object]

# More tracks than this for the messages of one device are never needed by eye.
TRACKS_PER_DEVICE = 100
# The last of them: gradient sums that go on beside passes.
SUM_TRACK = TRACKS_PER_DEVICE - 1


def write_chrome_trace(
    estimates: Mapping[str, Estimate], path: Path, problem: Problem, plan: Plan
) -> None:
    """Writes one trace process for each estimate.

    Args:
        estimates: By the name of the process, such as `predicted` and `measured`; with timelines,
            and with memory curves where memory is to be seen.
        path: The JSON file.
        problem: Where the bytes of the messages come from.
        plan: What ran.
    """
    events: list[TraceEvent] = []
    num_arrows = 0
    for process, (name, estimate) in enumerate(estimates.items()):
        messages = list(messages_of(estimate.timeline, problem, plan))
        events.append(_name("process_name", name, process, 0))
        events += _device_tracks(estimate.timeline, process)
        events += _message_tracks(estimate.timeline, messages, process, num_arrows)
        # Viewers join the ends of an arrow by its number alone, whatever process they are in.
        num_arrows += len(messages)
        for curve in estimate.memory_curves:
            events += _counter(curve, process)
    write_text(path, json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))


def _devices(timeline: Iterable[TimelineEvent]) -> dict[str, int]:
    """The track of each device."""
    names = dict.fromkeys(event.device for event in timeline)
    return {name: index * TRACKS_PER_DEVICE for index, name in enumerate(names)}


def _device_tracks(timeline: tuple[TimelineEvent, ...], process: int) -> Iterator[TraceEvent]:
    tracks, are_beside = _devices(timeline), sums_beside_passes(timeline)
    for name, track in tracks.items():
        yield _name("thread_name", name, process, track)
        yield _order(process, track)
        if are_beside:
            yield _name("thread_name", f"{name} sums", process, track + SUM_TRACK)
            yield _order(process, track + SUM_TRACK)
    for event in timeline:
        if event.action != "send":
            is_beside = are_beside and event.action == "reduce"
            yield _slice(
                f"wait {event.micro_batch}" if event.action == "receive" else _title(event),
                event,
                process,
                tracks[event.device] + (SUM_TRACK if is_beside else 0),
                {"stage": event.stage, "micro_batch": event.micro_batch},
            )


def _message_tracks(
    timeline: tuple[TimelineEvent, ...], messages: list[Message], process: int, first_arrow: int
) -> Iterator[TraceEvent]:
    """Messages of one device that are on their way together stand on tracks of their own."""
    tracks = _devices(timeline)
    free_s: dict[str, list[float]] = {name: [] for name in tracks}
    for number, message in enumerate(messages, start=first_arrow):
        send, lanes = message.send, free_s[message.send.device]
        lane = next((i for i, end_s in enumerate(lanes) if end_s <= send.start_s), len(lanes))
        if lane == len(lanes):
            lanes.append(0.0)
            track = tracks[send.device] + 1 + lane
            yield _name("thread_name", f"{send.device} sends", process, track)
            yield _order(process, track)
        lanes[lane] = send.end_s
        track = tracks[send.device] + 1 + lane
        what = "activations" if message.direction == "forward" else "gradients"
        arguments: dict[str, object] = {
            "stage": send.stage,
            "micro_batch": send.micro_batch,
            "to": message.target.device,
            "bytes": message.num_bytes,
        }
        yield _slice(f"{what} {send.micro_batch}", send, process, track, arguments)
        arrow: TraceEvent = {"name": what, "cat": "message", "id": number, "pid": process}
        yield {**arrow, "ph": "s", "ts": send.start_s * 1e6, "tid": track}
        yield {
            **arrow,
            "ph": "f",
            "bp": "e",
            "ts": message.target.start_s * 1e6,
            "tid": tracks[message.target.device],
        }


def _counter(curve: MemoryCurve, process: int) -> Iterator[TraceEvent]:
    for seconds, gradients, activations, buffers in zip(
        curve.times_s, curve.gradient_bytes, curve.activation_bytes, curve.buffer_bytes, strict=True
    ):
        yield {
            "name": f"memory {curve.device} (bytes)",
            "ph": "C",
            "ts": seconds * 1e6,
            "pid": process,
            "args": {
                "parameters": curve.parameter_bytes,
                "optimizer": curve.optimizer_bytes,
                "gradients": gradients,
                "activations": activations,
                "buffers": buffers,
            },
        }


def _title(event: TimelineEvent) -> str:
    return f"{event.action} {event.micro_batch}" if event.micro_batch >= 0 else event.action


def _slice(
    name: str, event: TimelineEvent, process: int, track: int, arguments: dict[str, object]
) -> TraceEvent:
    return {
        "name": name,
        "cat": event.action,
        "ph": "X",
        "ts": event.start_s * 1e6,
        "dur": (event.end_s - event.start_s) * 1e6,
        "pid": process,
        "tid": track,
        "args": arguments,
    }


def _name(kind: str, name: str, process: int, track: int) -> TraceEvent:
    return {"name": kind, "ph": "M", "pid": process, "tid": track, "args": {"name": name}}


def _order(process: int, track: int) -> TraceEvent:
    return {
        "name": "thread_sort_index",
        "ph": "M",
        "pid": process,
        "tid": track,
        "args": {"sort_index": track},
    }
