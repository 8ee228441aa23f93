"""A comparison as a folder: each planner's plan and its timeline, and the table in three formats.

The folder is written beside its place and then moved there, so that nobody ever sees half of it. A
folder of an earlier comparison is replaced; any other one that holds something is left alone. Plans
in it open wherever the folder is: a model or a cluster that is no shipped one lies beside them.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path

from heterps.comparisons.tables import reason_of
from heterps.html_report.comparison_page import ComparedPlanners, comparison_sections
from heterps.html_report.page import page
from heterps.micro_batches.place_result import PlaceResult
from heterps.planning.comparison import Comparison, ComparisonRow
from heterps.reports.figures import plan_timeline_figure, save_figure
from heterps_configs.documents.cluster import Cluster
from heterps_configs.errors import HeterpsError
from heterps_configs.library import load_cluster, load_profile, shipped
from heterps_configs.outputs import file_name_of, try_outputs
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import estimate

TABLE = "table"
TABLE_FILES = tuple(f"{TABLE}.{ending}" for ending in ("json", "csv", "html"))
MODEL_FILE, CLUSTER_FILE = "model.yaml", "cluster.yaml"


def check_folder(folder: Path | None, option: str = "--output") -> None:
    """Refuses, before the work, a folder that cannot be written or that holds other files.

    Raises:
        HeterpsError: It cannot be made, or holds what no earlier comparison wrote.
    """
    if folder is None:
        return
    try_outputs(folders={option: folder})
    there = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    others = sorted(there - _written_before(folder))
    if others:
        raise HeterpsError(
            f"{option} {folder}: holds {others[0]}, which no comparison wrote; name another folder"
        )


def write_folder(comparison: Comparison, folder: Path) -> dict[str, str]:
    """Writes plans, figures and the table, in one move.

    Args:
        comparison: What `heterps.planning.compare.compare` returned.
        folder: Made, with those above it; see `check_folder` for one that is there.

    Returns:
        By planner, the file of its plan, as a path from here.

    Raises:
        HeterpsError: The folder cannot be written, or holds files of others.
    """
    check_folder(folder)
    with _in_one_move(folder) as made:
        files = _write_plans(comparison, made)
        _write_tables(comparison, files, made)
    return {name: str(folder / file) for name, file in files.items()}


def _write_plans(comparison: Comparison, folder: Path) -> dict[str, str]:
    """The plan and the timeline of each planner that has one; names of the plan files."""
    references = _references(comparison.problem, folder)
    files: dict[str, str] = {}
    for name, result in comparison.results.items():
        stem = _stem(name)
        plan = result.plan.changed(**references)
        plan.to_file(folder / f"{stem}.yaml")
        shown = estimate(result.problem, plan, with_timeline=True)
        figure = plan_timeline_figure(result.problem, plan, shown, _title(name, result))
        save_figure(figure, folder / f"{stem}.png")
        files[name] = f"{stem}.yaml"
    return files


def _stem(name: str) -> str:
    """Of a planner's files; a planner of somebody's own may be called as one of ours here."""
    stem = file_name_of(name)
    taken = {TABLE, Path(MODEL_FILE).stem, Path(CLUSTER_FILE).stem}
    return f"{stem}-planner" if stem in taken else stem


def _title(name: str, result: PlaceResult) -> str:
    return f"{result.plan.model} on {result.plan.cluster}, planner {name}"


def _references(problem: Problem, folder: Path) -> dict[str, str]:
    """What plans shall say of their model and cluster; files where these are no shipped ones."""
    model, cluster = problem.model_reference, problem.cluster_reference
    if model not in shipped("models") or load_profile(model) != problem.profile:
        problem.profile.to_file(folder / MODEL_FILE)
        model = MODEL_FILE
    if cluster not in shipped("clusters"):
        _whole_cluster(problem).to_file(folder / CLUSTER_FILE)
        cluster = CLUSTER_FILE
    return {"model_reference": model, "cluster_reference": cluster}


def _whole_cluster(problem: Problem) -> Cluster:
    """Of a file all devices, those too that planners had no use for."""
    if Path(problem.cluster_reference).is_file():
        return load_cluster(problem.cluster_reference)
    return problem.cluster


def _write_tables(comparison: Comparison, files: Mapping[str, str], folder: Path) -> None:
    mapping = {**comparison.to_mapping(), "plan_files": dict(files)}
    as_json, as_csv, as_html = (folder / name for name in TABLE_FILES)
    as_json.write_text(json.dumps(mapping, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    names = [entry.name for entry in fields(ComparisonRow)]
    with as_csv.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [*names, "plan_file"])
        writer.writeheader()
        for row in comparison.rows:
            cells = {**asdict(row), "reason": reason_of(row)}
            writer.writerow({**cells, "plan_file": files.get(row.planner, "")})
    found = ComparedPlanners.from_mapping(mapping, str(as_json))
    title = f"Planners for {found.model} on {found.cluster}"
    as_html.write_text(page(title, comparison_sections(found)), encoding="utf-8")


def _written_before(folder: Path) -> set[str]:
    """Names of what an earlier comparison wrote there, as its table says."""
    try:
        found = ComparedPlanners.from_file(folder / TABLE_FILES[0])
    except HeterpsError:
        return set()
    plans = [f"{_stem(name)}.yaml" for name in found.plan_files]
    figures = [str(Path(name).with_suffix(".png")) for name in plans]
    return {*plans, *figures, *TABLE_FILES, MODEL_FILE, CLUSTER_FILE}


@contextmanager
def _in_one_move(folder: Path) -> Iterator[Path]:
    """A new folder, which takes the place of `folder` when the block has ended well.

    Raises:
        HeterpsError: It cannot be written.
    """
    target = folder.resolve()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        room = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    except OSError as error:
        raise HeterpsError(f"{folder}: cannot be written: {error.strerror}") from None
    try:
        made, before = room / "new", room / "old"
        made.mkdir()  # with the rights that the user's files have
        yield made
        if target.exists():
            os.rename(target, before)
        try:
            os.rename(made, target)
        except OSError:
            if before.exists():
                os.rename(before, target)
            raise
    except OSError as error:
        raise HeterpsError(f"{folder}: cannot be written: {error.strerror}") from None
    finally:
        shutil.rmtree(room, ignore_errors=True)
