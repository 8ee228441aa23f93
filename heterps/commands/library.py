"""`heterps list`, `heterps copy`, `heterps schema`: the shipped files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.table import Table

from heterps.commands.hardware import (
    device_details_data,
    link_kinds_data,
    print_device_details,
    print_link_kinds,
)
from heterps.reports.console import answer, print_json
from heterps_configs import library
from heterps_configs.errors import HeterpsError, UnknownNameError
from heterps_configs.outputs import try_outputs

KINDS = (
    "clusters", "models", "devices", "links", "policies", "efforts", "training", "settings",
    "events",
)  # fmt: skip


def run_list(kind: str | None, *, is_detailed: bool, as_json: bool) -> None:
    """Prints the names of one kind, or of all."""
    from heterps_agents.interface.papers import EVIDENCE, PAPERS
    from heterps_agents.interface.registry import planner_names, system_names
    from heterps_agents.interface.sentences import SENTENCES

    if kind is not None and kind not in (*KINDS, "planners"):
        raise UnknownNameError("kind", kind, [*KINDS, "planners"])
    if is_detailed and kind != "devices":
        raise HeterpsError("--detail is for `heterps list devices`")
    if not as_json and (kind == "links" or is_detailed):
        (print_device_details if is_detailed else print_link_kinds)()
        return
    rows = {name: library.describe(name) for name in KINDS if kind in (None, name)}
    if kind in (None, "planners"):
        names = (*planner_names(), *system_names())
        rows["planners"] = tuple((name, _said_of(name)) for name in names)
    if as_json:
        listed: dict[str, Any] = {name: [row[0] for row in part] for name, part in rows.items()}
        if "planners" in rows:
            listed["sentences"] = {name: SENTENCES.get(name, "") for name in listed["planners"]}
            listed["papers"] = {
                name: {
                    **paper._asdict(),
                    "evidence": [entry._asdict() for entry in EVIDENCE.get(name, ())],
                }
                for name, paper in PAPERS.items()
            }
        if kind == "links":
            listed["link_kinds"] = link_kinds_data()
        if is_detailed:
            listed["device_types"] = device_details_data()
        print_json(listed)
        return
    for name, part in rows.items():
        table = Table(title=name, title_justify="left", show_header=False, box=None, padding=(0, 2))
        for entry in part:
            table.add_row(*entry)
        answer.print(table)


def _said_of(planner: str) -> str:
    """What a planner does, and the paper behind it."""
    from heterps_agents.interface.papers import PAPERS
    from heterps_agents.interface.sentences import SENTENCES

    parts = (SENTENCES.get(planner, ""), str(PAPERS.get(planner, "")))
    return "\n".join(part for part in parts if part)


def run_copy(name: str, destination: Path, *, kind: str | None, overwrite: bool) -> None:
    """Copies a shipped file and says where it is."""
    try_outputs(folders={"the folder": destination})
    answer.print(str(library.copy(name, destination, kind=kind, overwrite=overwrite)))


def run_schema(folder: Path) -> None:
    """Writes the JSON schemas and names the files."""
    from heterps_configs.schema import export_schemas

    try_outputs(folders={"the folder": folder})

    for path in export_schemas(folder):
        answer.print(str(path))
