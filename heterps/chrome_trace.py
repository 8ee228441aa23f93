"""The timeline as a Chrome trace: opens in Perfetto and in chrome://tracing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from heterps_configs.estimate import Estimate
from heterps_configs.yaml_files import write_text


def write_chrome_trace(estimates: Mapping[str, Estimate], path: Path) -> None:
    """Writes one trace process for each estimate, one thread for each device.

    Args:
        estimates: By the name of the process, such as `predicted` and `measured`; with timelines.
        path: The JSON file.
    """
    events: list[dict[str, object]] = []
    for process, (name, estimate) in enumerate(estimates.items()):
        devices = list(dict.fromkeys(event.device for event in estimate.timeline))
        events.append(_name("process_name", name, process, 0))
        events += [_name("thread_name", device, process, i) for i, device in enumerate(devices)]
        events += [
            {
                "name": f"{event.action} {event.micro_batch}"
                if event.micro_batch >= 0
                else event.action,
                "cat": event.action,
                "ph": "X",
                "ts": event.start_s * 1e6,
                "dur": (event.end_s - event.start_s) * 1e6,
                "pid": process,
                "tid": devices.index(event.device),
                "args": {"stage": event.stage},
            }
            for event in estimate.timeline
        ]
    write_text(path, json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))


def _name(kind: str, name: str, process: int, thread: int) -> dict[str, object]:
    return {"name": kind, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}
