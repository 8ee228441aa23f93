"""The parts of the docs that follow from the code: commands, the README's tree, the table of rooms.

`python -m tests.house.documents` writes them anew; a test compares.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_type_hints

ROOT = Path(__file__).resolve().parents[2]
# Path -> what the tree says of it. The rooms of a floor say it themselves, in their `__init__`.
FLOORS = {
    "heterps": "5  the front door",
    "runtime/heterps_runtime": "4  the real world",
    "agents/heterps_agents": "3  all that answers a problem with a plan",
    "envs/heterps_envs": "2  the simulated world",
    "configs/heterps_configs": "1  the documents",
}
OTHERS = {
    "configs/heterps_configs/clusters": "Shipped clusters",
    "configs/heterps_configs/calibrations": "Layer times of cards, fitted on published ones",
    "configs/heterps_configs/devices": "The device catalogue: memory, peaks, dated prices",
    "configs/heterps_configs/efforts": "How hard planners try: `--effort`",
    "configs/heterps_configs/events": "Run events: an example",
    "configs/heterps_configs/links": "Kinds of links: published bandwidths, or a rule",
    "configs/heterps_configs/models": "Shipped model profiles",
    "configs/heterps_configs/policies": "Trained policies and their model cards",
    "configs/heterps_configs/settings": "Run settings: all of them with their defaults",
    "configs/heterps_configs/training": "Training configurations",
    "benchmarks": "what reproduces every number",
    "benchmarks/agent": "Policies beside searches and the solver; what learning adds in `worth/`",
    "benchmarks/cost_model": "Speed of closed form and simulator; layer times of unmeasured GPUs",
    "benchmarks/fidelity": "Predicted against measured steps and memory: own and published runs",
    "benchmarks/field": "All planners and published systems on 60 problems; claims of papers",
    "benchmarks/gpu": "What runs on one NVIDIA GPU, against predictions and plain PyTorch",
    "benchmarks/online": "Drift, moves, fine-tuning, spot traces; lost ranks in `recovery/`",
    "benchmarks/parity": "Training under a plan against training in one process",
    "benchmarks/planners": "The exact solver, all of `heterps place`, plans over the even split",
    "benchmarks/published": "Workloads of other papers beside their published numbers",
    "benchmarks/runtime": "Host time of the executor, start of a run, faults",
    "benchmarks/shared": "What benchmarks share: options, rows, the sockets of processes",
    "benchmarks/strategy": "Planners beside the best even plan, on 80 problems",
    "benchmarks/trust": "Attacks, sockets, planners on hostile problems, broken documents",
    "tests": "mirrors the floors",
    "tests/house": "Floors, rooms, this tree, links and commands in the docs, the wheel",
    "docs": "what people read",
    "docs/design": "Why it is built this way: cost, simulator, planners, runtime, recovery",
    "docs/results": "Tables that benchmarks wrote",
}
FRONT_DOORS = re.compile(r"Front doors?:\s(.+?)(?:\.\s|\.?\Z)", re.DOTALL)


def docstring(folder: Path) -> str:
    """That of a folder's `__init__`."""
    return ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""


def purpose(folder: Path) -> str:
    """The first line of a room's docstring."""
    return docstring(folder).partition("\n")[0].removesuffix(".")


def doors(folder: Path) -> list[str]:
    """The names that a room's docstring gives as its front doors."""
    found = FRONT_DOORS.search(docstring(folder))
    return re.findall(r"`([\w.]+)`", found[1]) if found else []


def rooms(floor: str) -> list[Path]:
    """The folders of a floor that hold code."""
    return sorted(file.parent for file in (ROOT / floor).glob("*/__init__.py"))


# -- the README's tree


def tree() -> str:
    """The tree of the README, two levels deep."""
    lines = []
    for top in (*FLOORS, "benchmarks", "tests", "docs"):
        lines.append(f"{top + '/':<28}{FLOORS.get(top) or OTHERS[top]}")
        inner = {room.name: purpose(room) for room in rooms(top)} if top in FLOORS else {}
        inner |= {
            Path(path).name: text for path, text in OTHERS.items() if Path(path).parent == Path(top)
        }
        lines += [f"  {name + '/':<16}{text}" for name, text in inner.items()]
    return "```\n" + "\n".join(lines) + "\n```\n"


# -- the rooms, in docs/architecture.md


def rooms_table() -> str:
    """All rooms, the highest floor first: purpose and front doors."""
    lines = ["| room | what it is for | front door |", "| --- | --- | --- |"]
    for floor, text in FLOORS.items():
        lines.append(f"| **`{floor}/`** | **{text}** | |")
        for room in rooms(floor):
            own = ", ".join(f"`{door}`" for door in doors(room))
            lines.append(f"| `{room.name}` | {purpose(room)} | {own} |")
    return "\n".join(lines) + "\n"


# -- the commands


def commands() -> str:
    """Every command with its arguments and options, from the Typer app."""
    import typer.main

    from heterps.cli.app import app

    group: Any = typer.main.get_command(app)
    parts = [
        "\n".join([f"### heterps {name}", "", *_command(name, command)])
        for name, command in group.commands.items()
        if not command.hidden
    ]
    return "\n\n".join(parts) + "\n"


def _command(name: str, command: Any) -> Iterator[str]:
    hints = get_type_hints(command.callback)
    shown = [p for p in command.params if not p.hidden and p.name != "help"]
    arguments = [p for p in shown if p.param_type_name == "argument"]
    usage = " ".join(_argument(p) for p in arguments)
    yield " ".join((command.help or "").split())
    yield ""
    yield f"    heterps {name} {usage}".rstrip() + " [OPTIONS]"
    yield ""
    yield f"{command.epilog.replace('Example: ', 'Example: `')}`"
    yield ""
    yield "| | default | |"
    yield "| --- | --- | --- |"
    for parameter in shown:
        yield f"| {_spelling(parameter, hints)} | {_default(parameter)} | {_help(parameter)} |"


def _argument(parameter: Any) -> str:
    text = _name(parameter) + ("..." if parameter.nargs == -1 else "")
    return text if parameter.required else f"[{text}]"


def _name(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper())


def _spelling(parameter: Any, hints: dict[str, Any]) -> str:
    if parameter.param_type_name == "argument":
        return f"`{_name(parameter)}`"
    names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
    kind = _kind(hints[parameter.name])
    return names + (f" {kind}" if kind else "") + (" (many)" if parameter.multiple else "")


def _kind(annotation: Any) -> str:
    """What stands after the name of an option."""
    inner = [part for part in get_args(annotation) if part is not NoneType]
    if inner and annotation not in (int, float, str, bool, Path):
        return _kind(inner[0])
    return {int: "N", float: "NUMBER", Path: "PATH", bool: ""}.get(annotation, "TEXT")


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    value = parameter.default
    is_said = value is None or value is False or value == () or value == [] or callable(value)
    return "" if is_said else f"`{value}`"


def _help(parameter: Any) -> str:
    text = " ".join((parameter.help or "").split())
    return text.replace("|", "\\|").replace("[bold]", "").replace("[/bold]", "")


# -- into the files


def written(document: str, name: str, content: str) -> str:
    """A document with new content between its two marks.

    Raises:
        ValueError: It lacks the marks.
    """
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"
    before, found, rest = document.partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise ValueError(f"the marks of {name} are missing")
    return before + begin + content + end + after


def documents() -> dict[Path, str]:
    """Path -> what should stand there."""
    parts = {
        ROOT / "README.md": ("tree", tree()),
        ROOT / "docs" / "architecture.md": ("rooms", rooms_table()),
        ROOT / "docs" / "commands.md": ("commands", commands()),
    }
    return {path: written(path.read_text(), *part) for path, part in parts.items()}


if __name__ == "__main__":
    for path, text in documents().items():
        path.write_text(text)
