"""Writes the page: what a file or folder is, what is shown of it, and the look of it all."""

from __future__ import annotations

import warnings
from pathlib import Path

from heterps.html_report.comparison_page import ComparedPlanners, comparison_sections
from heterps.html_report.markup import Markup, joined, tag
from heterps.html_report.plan_page import plan_facts, plan_sections
from heterps.planning.plans import load_plan_and_problem, naming, problem_of_plan
from heterps_configs.documents.yaml_files import parse_json, read_text, write_text
from heterps_configs.errors import HeterpsError

# Of a folder of `heterps compare -o`, what it prints with --json.
COMPARED_FILE = "table.json"
# What a training leaves (`heterps_agents.training.run`, which needs torch).
TRAINING_FILES = ("checkpoint.pt", "policy.npz")
STYLE = """
:root { --ink: #1b1f24; --soft: #5b6570; --line: #d9dee4; --paper: #ffffff; --card: #f6f8fa; }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 1180px; color: var(--ink);
  background: var(--paper); font: 15px/1.5 system-ui, "Segoe UI", Helvetica, Arial, sans-serif; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: .5rem 0; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 0 0 .25rem; }
section { margin: 1.75rem 0; }
p { margin: .25rem 0 .6rem; overflow-wrap: anywhere; }
.note, small { color: var(--soft); font-size: .85rem; }
.bad { color: #b3261e; font-weight: 600; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: .6rem; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 8px;
  padding: .6rem .8rem; }
.card b { display: block; font-size: 1.35rem; }
.card span, .card small { display: block; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { text-align: left; padding: .3rem .7rem .3rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; min-width: 4.5rem; }
td:last-child { min-width: 9rem; }
th { color: var(--soft); font-weight: 600; white-space: nowrap; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.nodes { display: grid; grid-template-columns: repeat(auto-fill, minmax(165px, 1fr)); gap: .6rem; }
.node { border: 1px solid var(--line); border-radius: 8px; padding: .5rem .6rem; }
.node b, .node small, .curve b, .curve small { display: block; overflow-wrap: anywhere; }
.devices { display: flex; flex-wrap: wrap; gap: 4px; margin: .35rem 0; }
.device { width: 20px; height: 20px; border-radius: 4px; }
.device.idle { border: 1px dashed #9aa4af; }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1rem; margin: .5rem 0; font-size: .85rem; }
.legend i { display: inline-block; width: 12px; height: 12px; border-radius: 3px;
  margin-right: .35rem; vertical-align: -1px; border: 1px solid #0002; }
.curves { display: grid; grid-template-columns: repeat(auto-fill, minmax(210px, 1fr)); gap: 1rem; }
.curve svg { width: 100%; height: 84px; border-bottom: 1px solid var(--line); }
svg text { font: 11px system-ui, Helvetica, Arial, sans-serif; fill: var(--soft); }
svg.chart { width: 100%; max-width: 860px; height: auto; }
svg.timeline { width: 100%; min-width: 720px; height: auto; }
.grid { stroke: var(--line); stroke-width: 1; }
.line { fill: none; stroke-width: 1.8; }
@media (max-width: 600px) { body { padding: .75rem; } h1 { font-size: 1.25rem; }
  svg.chart { min-width: 0; } svg.chart text { font-size: 17px; } }
"""


def write_report(
    source: Path, output: Path, model: str | None = None, cluster: str | None = None
) -> None:
    """Writes the page of a plan, of a run, or of a comparison.

    Args:
        source: A plan file, a run directory, or what `heterps compare` wrote: the folder, or a file
            that it printed with `--json`.
        output: The page.
        model: Where the plan's model moved to.
        cluster: Where its cluster moved to.

    Raises:
        HeterpsError: The source is none of these, or something of it is missing.
    """
    table = source / COMPARED_FILE
    compared = table if table.is_file() else source
    if compared is table or (source.suffix == ".json" and _is_comparison(source)):
        given = {"--model": model, "--cluster": cluster}
        for option in (name for name, moved in given.items() if moved is not None):
            warnings.warn(f"{option} is ignored: a comparison says all by itself", stacklevel=2)
        title, content = _of_comparison(compared)
    elif source.is_dir():
        title, content = _of_run(source, model, cluster)
    else:
        plan, problem = load_plan_and_problem(source, model, cluster)
        title = f"{plan.model} on {plan.cluster}"
        content = plan_sections(plan_facts(problem, plan))
    write_text(output, page(title, content))


def page(title: str, content: Markup) -> str:
    """A whole document: no script, no address, nothing to load."""
    head = tag(
        "head",
        Markup('<meta charset="utf-8"><meta name="viewport" content="width=device-width">'),
        tag("title", f"{title} - heterps"),
        Markup(f"<style>{STYLE}</style>"),
    )
    body = tag("body", tag("h1", title), content)
    return f'<!doctype html>\n<html lang="en">{joined([head, body])}</html>\n'


def _of_run(folder: Path, model: str | None, cluster: str | None) -> tuple[str, Markup]:
    # torch comes with it, which plans and comparisons do without.
    from heterps.html_report.run_page import RunFacts, run_sections
    from heterps_runtime.results.result import RESULT_FILE, RunResult

    path = folder / RESULT_FILE
    if not path.exists() and any((folder / name).is_file() for name in TRAINING_FILES):
        raise HeterpsError(
            f"{folder}: is the folder of a training, which has no page; TensorBoard shows it: "
            f"tensorboard --logdir {folder}"
        )
    if not path.exists():
        raise HeterpsError(
            f"{folder}: holds no {RESULT_FILE}; expected a run directory (--run-directory) whose "
            "run has ended, or a folder of `heterps compare -o`"
        )
    result = RunResult.from_file(path)
    if result.final_plan is None:
        raise HeterpsError(f"{path}: final_plan: is missing")
    if len(result.phases) < 2:
        raise HeterpsError(f"{path}: phases: must have one for each plan and one for the whole run")
    with naming(path):
        problem = problem_of_plan(result.final_plan, folder, model, cluster)
    facts = RunFacts.of(problem, result.final_plan, result.final_estimate)
    title = f"Run of {result.final_plan.model} on {result.final_plan.cluster}"
    return title, run_sections(result, facts)


def _is_comparison(path: Path) -> bool:
    """Whether a file has the fields of one; a plan may be JSON, too."""
    try:
        content = parse_json(read_text(path, str(path)), str(path))
    except HeterpsError:
        return False
    return isinstance(content, dict) and "rows" in content


def _of_comparison(path: Path) -> tuple[str, Markup]:
    found = ComparedPlanners.from_file(path)
    return f"Planners for {found.model} on {found.cluster}", comparison_sections(found)
