"""`heterps export`: a plan, or what was trained under it, for another tool."""

from __future__ import annotations

from pathlib import Path

from heterps.exports.export import NAMES, WEIGHTS, export_plan, export_weights
from heterps.planning.plans import load_plan_and_problem
from heterps.planning.trust import ask_for_trust
from heterps.reports import console
from heterps.reports.console import answer, print_json
from heterps_configs.errors import HeterpsError, UnknownNameError
from heterps_configs.outputs import try_outputs
from heterps_runtime.models.trust import UntrustedCodeError


def run_export(
    plan_file: Path,
    folder: Path,
    *,
    target: str,
    checkpoint: str | None,
    model: str | None,
    cluster: str | None,
    trusts_code: bool,
    as_json: bool,
) -> None:
    """Writes a folder, and says what is in it and what is not.

    Args:
        plan_file: The plan.
        folder: New, or empty.
        target: What the folder is for.
        checkpoint: Whose weights are written.
        model: Where the model moved to.
        cluster: Where the cluster moved to.
        trusts_code: Code that the plan's model names may run without a question.
        as_json: Print JSON.

    Raises:
        HeterpsError: The target cannot express the plan, or options do not belong together.
    """
    if target not in NAMES:
        raise UnknownNameError("target", target, list(NAMES))
    if (target == WEIGHTS) != (checkpoint is not None):
        raise HeterpsError(
            f"--to {WEIGHTS} needs --checkpoint: whose weights are written"
            if target == WEIGHTS
            else f"--checkpoint: --to {target} writes no weights; use --to {WEIGHTS}"
        )
    try_outputs(folders={"FOLDER": folder})
    plan, problem = load_plan_and_problem(plan_file, model, cluster)
    if checkpoint is None:
        try:
            remarks = export_plan(problem, plan, target, folder)
        except UntrustedCodeError:  # some targets need the modules of the model
            what = f"{plan_file}: this plan"
            ask_for_trust(problem.profile.source, what, is_trusted=trusts_code, say=_say)
            remarks = export_plan(problem, plan, target, folder)
    else:
        remarks = export_weights(problem, checkpoint, folder)
    files = sorted(file.name for file in folder.iterdir())
    if as_json:
        print_json({"folder": str(folder), "files": files, "remarks": list(remarks)})
        return
    answer.print(f"{folder}: {', '.join(files)}")
    for remark in remarks:
        answer.print(f"remark: {remark}")


def _say(text: str) -> None:
    console.remarks.print(text, soft_wrap=True)
