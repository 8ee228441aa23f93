"""Training under a plan against training in one process: losses, parameters, order of actions.

    python benchmarks/parity/parity.py --json parity.json --markdown parity.md
    python benchmarks/parity/parity.py --quick

Every model x fourteen shapes of plans x four schedules, 20 steps in float32 with AdamW. All devices
of a plan take turns in one process (`heterps_runtime.execution.local_run`: the executors, stages
and action lists of a run); some cells also run as real processes. Limits: losses within 1e-5, every
number of every parameter within 1e-4, and each device carries out its action list of the simulator
in its order.

Replicas and tied weights add gradients in another order than one process does. AdamW divides by
the size of a gradient, so that where a gradient is nearly zero its rounding becomes a whole step.
A cell beyond a limit is therefore trained twice more: in float64 on both sides, and in float32 with
plain SGD. Where float64 agrees to 1e-10, the difference was the rounding of float32, and the
cell is called `rounding`; it still counts as beyond the limit. Else it is `wrong`. A model that
tensor-parallel groups cannot split as the plan says is `refused`, with the reason.

Finished cells are kept beside the --json file; started again, it goes on after them.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.parity.models import SOURCES
from benchmarks.parity.plans import GROUP_SHAPES, SCHEDULES, SHAPES
from benchmarks.parity.runs import Cell, run
from benchmarks.shared.common import machine, parse_options, report
from benchmarks.shared.row_store import Row, RowStore
from heterps_configs.documents.yaml_files import write_text
from heterps_configs.errors import HeterpsError, UnknownNameError

NUM_STEPS = 20
LOSS_LIMIT, PARAMETER_LIMIT, FLOAT64_LIMIT = 1e-5, 1e-4, 1e-10
QUICK_MODELS = ("gpt2", "sequential")
# Model, shape, schedule of the cells that also run as processes.
AS_PROCESSES = (
    ("llama", "unequal cuts", "zero-bubble"),
    ("gpt2", "equal cuts", "interleaved"),
    ("resnet", "unequal cuts", "1f1b"),
    ("sequential", "unequal replicas", "zero-bubble"),
    ("t5", "different depths", "interleaved"),
    ("click-through", "shared stages", "gpipe"),
    ("bert", "unequal micro-batches", "zero-bubble"),
    ("vit", "unequal micro-batches", "interleaved"),
    ("tuples, dicts, skip", "shared stages", "zero-bubble"),
    ("dropout, frozen", "unequal replicas", "interleaved"),
    ("gpt2", "uneven groups", "zero-bubble"),
    ("llama, grouped queries", "replicas of groups, shared state", "1f1b"),
    ("mixtral", "groups", "interleaved"),
    ("vit", "one uneven group, recompute", "gpipe"),
    ("gpt2", "replicas of unlike groups", "1f1b"),
    ("bert", "unlike groups", "zero-bubble"),
)


def main() -> None:
    """Runs all cells that are not there yet, and prints the worst of each model and schedule."""
    options = parse_options(
        __doc__ or "",
        only="one model, or several with semicolons between",
        shapes="one shape, or several with semicolons between",
        markdown="write the table to this file",
    )
    warnings.filterwarnings("ignore", message="batch normalisation")
    torch.set_num_threads(1)
    try:
        rows = list(_rows(options))
    except HeterpsError as error:
        sys.exit(f"error: {error}")
    summary = _summary(rows)
    report("Parity with one process", _worst(rows), summary, argparse.Namespace(json=None))
    if options.json:
        content = {"rows": rows, "summary": {**summary, **machine()}}
        write_text(options.json, json.dumps(content, indent=1) + "\n")
        _partial_file(options.json).unlink(missing_ok=True)
    if options.markdown:
        write_text(Path(options.markdown), _markdown(rows, summary))


def _rows(options: argparse.Namespace) -> Iterator[Row]:
    """One row for each cell, in order."""
    cells = _cells(options)
    settings = {"seed": options.seed, "steps": NUM_STEPS}
    store = RowStore(_partial_file(options.json) if options.json else None, settings)
    for number, cell in enumerate(cells):
        key = "; ".join((*cell[:4], "one process" if cell.is_local else "processes"))
        if key not in store:
            print(f"{number + 1} of {len(cells)}: {key}", file=sys.stderr)
            store.add(key, _row(cell, options.seed))
        yield store[key]


def _cells(options: argparse.Namespace) -> list[Cell]:
    models = options.only.split(";") if options.only else list(SOURCES)
    for name in models:
        if name not in SOURCES:
            raise UnknownNameError("model", name, list(SOURCES))
    shapes = options.shapes.split(";") if options.shapes else list(SHAPES)
    for name in shapes:
        if name not in SHAPES:
            raise UnknownNameError("shape", name, list(SHAPES))
    if options.quick and not options.only:
        models = list(QUICK_MODELS)
    cells = [
        Cell(model, shape, schedule, "adamw")
        for model in models
        for shape in shapes
        for schedule in SCHEDULES
    ]
    if not options.quick:
        cells += [
            cell._replace(is_local=False) for cell in cells if tuple(cell[:3]) in AS_PROCESSES
        ]
    return cells


def _row(cell: Cell, seed: int) -> Row:
    try:
        outcome = run(cell, seed, NUM_STEPS)
    except HeterpsError as error:
        if cell.shape not in GROUP_SHAPES:
            raise
        return _refused(cell, str(error))
    is_within = outcome.loss <= LOSS_LIMIT and outcome.parameter <= PARAMETER_LIMIT
    row: Row = {
        "model": cell.model,
        "shape": cell.shape,
        "schedule": cell.schedule,
        "engine": "one process" if cell.is_local else "processes",
        "loss_difference": outcome.loss,
        "parameter_difference": outcome.parameter,
        "order": "identical" if outcome.order_is_identical else "other",
        "actions": outcome.num_actions,
        "verdict": "within" if is_within else "wrong",
    }
    if not is_within:
        exact = run(cell._replace(is_local=True), seed, NUM_STEPS, in_float64=True)
        plain = run(cell._replace(is_local=True, optimizer="sgd"), seed, NUM_STEPS)
        row |= {
            "float64_loss": exact.loss,
            "float64_parameter": exact.parameter,
            "sgd_loss": plain.loss,
            "sgd_parameter": plain.parameter,
        }
        if max(exact.loss, exact.parameter) <= FLOAT64_LIMIT:
            row["verdict"] = "rounding"
    return row


def _refused(cell: Cell, reason: str) -> Row:
    """Of a model that no group can split, or not so: said before anything runs."""
    return {
        "model": cell.model,
        "shape": cell.shape,
        "schedule": cell.schedule,
        "engine": "one process" if cell.is_local else "processes",
        "loss_difference": 0.0,
        "parameter_difference": 0.0,
        "order": "identical",
        "actions": 0,
        "verdict": "refused",
        "reason": reason,
    }


def _summary(rows: Sequence[Row]) -> dict[str, Any]:
    within = _of(rows, "within")
    beyond = [row for row in rows if row["verdict"] not in ("within", "refused")]
    return {
        "cells": len(rows),
        "refused": len(_of(rows, "refused")),
        "within_both_limits": len(within),
        "beyond_by_rounding": len(_of(rows, "rounding")),
        "wrong": len(_of(rows, "wrong")),
        "order_identical": sum(row["order"] == "identical" for row in rows),
        "actions_compared": sum(row["actions"] for row in rows) * NUM_STEPS,
        "worst_loss_within": _largest(within, "loss_difference"),
        "worst_parameter_within": _largest(within, "parameter_difference"),
        "worst_loss_beyond": _largest(beyond, "loss_difference"),
        "worst_parameter_beyond": _largest(beyond, "parameter_difference"),
        "those_in_float64": max(
            (_largest(beyond, "float64_loss"), _largest(beyond, "float64_parameter"))
        ),
        "those_with_sgd_loss": _largest(beyond, "sgd_loss"),
        "those_with_sgd_parameter": _largest(beyond, "sgd_parameter"),
    }


def _of(rows: Sequence[Row], verdict: str) -> list[Row]:
    return [row for row in rows if row["verdict"] == verdict]


def _worst(rows: Sequence[Row]) -> list[Row]:
    """The worst of every model, shape, schedule and engine."""
    found = []
    for what in ("model", "shape", "schedule", "engine"):
        for name in dict.fromkeys(row[what] for row in rows):
            own = [row for row in rows if row[what] == name]
            found.append(
                {
                    "cells_with": name,
                    "of": len(own),
                    "within": len(_of(own, "within")),
                    "rounding": len(_of(own, "rounding")),
                    "wrong": len(_of(own, "wrong")),
                    "refused": len(_of(own, "refused")),
                    "loss": _largest(own, "loss_difference"),
                    "parameter": _largest(own, "parameter_difference"),
                    "order": "identical"
                    if all(row["order"] == "identical" for row in own)
                    else "other",
                }
            )
    return found


def _largest(rows: Sequence[Row], field: str) -> float:
    """The largest number of a column; 0 where there is none."""
    return max((row[field] for row in rows), default=0.0)


def _markdown(rows: Sequence[Row], summary: dict[str, Any]) -> str:
    """Worst cells, then the whole matrix, then what it was made with."""
    lines = [*_table(_worst(rows)), "", *_table(rows), ""]
    lines += [f"- {name}: {value}" for name, value in {**summary, **machine()}.items()]
    return "\n".join(lines) + "\n"


def _table(rows: Sequence[Row]) -> list[str]:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    heads = [name.replace("_", " ") for name in columns]
    lines = [heads, ["---"] * len(columns)]
    lines += [[_shown(row.get(name, "")) for name in columns] for row in rows]
    return [f"| {' | '.join(line)} |" for line in lines]


def _shown(value: object) -> str:
    return f"{value:.2g}" if isinstance(value, float) else str(value)


def _partial_file(path: Path) -> Path:
    """Where finished rows are kept until all are written."""
    return path.with_suffix(".partial.json")


if __name__ == "__main__":
    main()
