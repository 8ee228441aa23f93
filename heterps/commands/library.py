"""`heterps list`, `heterps copy`, `heterps schema`: the shipped files."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from heterps.reports.console import answer, print_json
from heterps_configs import library
from heterps_configs.errors import UnknownNameError

KINDS = ("clusters", "models", "devices", "policies", "training")


def run_list(kind: str | None, *, as_json: bool) -> None:
    """Prints the names of one kind, or of all."""
    from heterps_agents.interface.registry import planner_names

    if kind is not None and kind not in (*KINDS, "planners"):
        raise UnknownNameError("kind", kind, [*KINDS, "planners"])
    rows = {name: library.describe(name) for name in KINDS if kind in (None, name)}
    if kind in (None, "planners"):
        rows["planners"] = tuple((name, "") for name in planner_names())
    if as_json:
        print_json({name: [row[0] for row in part] for name, part in rows.items()})
        return
    for name, part in rows.items():
        table = Table(title=name, title_justify="left", show_header=False, box=None, padding=(0, 2))
        for entry in part:
            table.add_row(*entry)
        answer.print(table)


def run_copy(name: str, destination: Path, *, kind: str | None, overwrite: bool) -> None:
    """Copies a shipped file and says where it is."""
    answer.print(str(library.copy(name, destination, kind=kind, overwrite=overwrite)))


def run_schema(folder: Path) -> None:
    """Writes the JSON schemas and names the files."""
    from heterps_configs.documents.schema import export_schemas

    for path in export_schemas(folder):
        answer.print(str(path))
