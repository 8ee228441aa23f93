"""`heterps place`: plan, and say how good the plan is."""

from __future__ import annotations

import warnings
from collections import Counter
from pathlib import Path

from heterps.commands.requests import Limits, PlannerRequest, ProblemRequest
from heterps.micro_batches.place_result import PlaceResult
from heterps.planning.explain import explain
from heterps.planning.explanation import Explanation
from heterps.planning.place import goes_own_way, place, warn_of_own_way
from heterps.planning.problems import is_traced, needs_file
from heterps.planning.runnable import as_groups_run_it
from heterps.renting.offer import ALL, Offer
from heterps.renting.rent import is_affordable, place_within, usd_per_hour
from heterps.reports.console import answer, print_json, remarks, say_when_compiling, seconds_text
from heterps_agents.interface.planner import Budget, Planner
from heterps_agents.interface.system import System
from heterps_configs.outputs import DOCUMENT_SUFFIXES, Files, try_outputs
from heterps_envs.problem import Problem

# With so many devices the search of a planner that uses all of its time ends after so many seconds
# of a processor, where nobody asks for another end.
MANY_DEVICES, MANY_DEVICES_S = 128, 2.0


def plan_files(output: Path | None, model: str) -> Files:
    """What `save_plan` will write, for `try_outputs`."""
    files: Files = {"--output": (output, DOCUMENT_SUFFIXES)}
    if output is not None and is_traced(model):
        files["the traced model beside --output:"] = (_profile_path(output), ())
    return files


def _profile_path(plan_file: Path) -> Path:
    return plan_file.with_suffix(".model.yaml")


def save_plan(result: PlaceResult, path: Path) -> None:
    """Writes the plan; a model that was traced for it is saved beside it.

    Args:
        result: What `place` returned.
        path: The plan file; a traced profile goes to the same name with the ending `.model.yaml`.
    """
    plan = result.plan
    if needs_file(result.problem.model_reference, result.problem.profile):
        profile_path = _profile_path(path)
        result.problem.profile.to_file(profile_path)
        plan = plan.changed(model_reference=profile_path.name)
        remarks.print(f"model profile written to {profile_path}")
    plan.to_file(path)
    remarks.print(f"plan written to {path}")


def own_limit_s(problem: Problem, planner: Planner | System) -> float | None:
    """Processor seconds after which a search ends that nobody has limited; None: it has no end.

    Args:
        problem: What is asked.
        planner: One that does not use all of its time ends by itself.
    """
    number = len(problem.cluster.devices)
    if number < MANY_DEVICES or not getattr(planner, "is_patient", False):
        return None
    remarks.print(
        f"{number} devices: the search ends after {MANY_DEVICES_S:g} s of a processor; "
        "--seconds N lets it go on for so long, --effort normal to its own end"
    )
    return MANY_DEVICES_S


def run_place(
    asked: ProblemRequest,
    planner: PlannerRequest,
    limits: Limits,
    *,
    output: Path | None,
    as_json: bool,
    explains: bool = False,
    offer: Offer = ALL,
) -> None:
    """Places, prints, and writes the plan file where one is asked for.

    Args:
        asked: The problem.
        planner: That answers.
        limits: Of its search.
        output: The plan file.
        as_json: Print JSON.
        explains: Say what other choices would cost.
        offer: The devices that may be used.
    """
    try_outputs(plan_files(output, asked.model), read=asked.read)
    # What is misspelt should not wait for a model to be traced.
    chosen = planner.planner()
    limits.budget()
    if chosen.name == "exact" and limits.evaluations is not None:
        warnings.warn(
            "--evaluations ends no proof of the planner exact, which counts transitions; "
            "--seconds and --cpu-seconds do",
            stacklevel=1,
        )
    problem = asked.load()
    if asked.names_ways and goes_own_way(problem.strategy, chosen):
        warn_of_own_way(chosen)
    say_when_compiling()
    if planner.effort is None and limits == Limits():
        limits = Limits(cpu_seconds=own_limit_s(problem, chosen))
    result = _placed(problem, planner, chosen, offer, limits.budget())
    known = as_groups_run_it(problem, result.plan, is_traced=is_traced(asked.model))
    if known is not None:
        result = _placed(known, planner, chosen, offer, limits.budget())
    explanation = explain(problem, result) if explains else None
    try:
        if output is not None:
            save_plan(result, output)
    finally:
        _print(result, explanation, offer, as_json)


def _placed(
    problem: Problem,
    request: PlannerRequest,
    planner: Planner | System,
    offer: Offer,
    budget: Budget,
) -> PlaceResult:
    """Where several sets of devices are looked at, with a line for each on stderr."""
    effort, processes = request.effort, request.processes
    if offer == ALL:
        return place(problem, planner, budget=budget, effort=effort, processes=processes)
    if processes > 1:
        warnings.warn(
            "--processes is ignored where devices are chosen, one set after the other",
            stacklevel=1,
        )

    def tell(placed: Problem, found: PlaceResult | None) -> None:
        if offer.usd_per_hour is None:
            return
        counts = Counter(device.type.name for device in placed.cluster.devices)
        devices = ", ".join(f"{count} {name}" for name, count in counts.items())
        text = "no plan"
        if found is not None:
            text = (
                f"{seconds_text(found.estimate.step_time_s)}, {usd_per_hour(found):.4g} USD an hour"
            )
            text += "" if is_affordable(found, offer) else ", above the budget"
        remarks.print(f"{devices}: {text}")

    return place_within(problem, planner, offer, budget=budget, effort=effort, on_placed=tell)


def _print(
    result: PlaceResult, explanation: Explanation | None, offer: Offer, as_json: bool
) -> None:
    if as_json:
        told = {} if explanation is None else {"explanation": explanation.to_mapping()}
        print_json(result.to_mapping() | {"usd_per_hour": usd_per_hour(result)} | told)
        return
    from heterps.reports.tables import (
        dropped_lines,
        explanation_table,
        idle_lines,
        result_lines,
        size_lines,
        stages_table,
    )

    answer.print(stages_table(result, answer.width))
    for line in result_lines(result):
        answer.print(line)
    if offer.usd_per_hour is not None:
        answer.print(
            f"rent          {usd_per_hour(result):.4g} USD an hour, of {offer.usd_per_hour:g} "
            "at most"
        )
    if explanation is not None:
        if explanation.stages:
            answer.print(explanation_table(explanation))
        for line in (*dropped_lines(result.problem, explanation), *size_lines(explanation)):
            answer.print(line)
        if explanation.note:
            answer.print(explanation.note)
        for line in idle_lines(result.problem, explanation.idle):
            answer.print(line)
    elif len(result.plan.devices) < len(result.problem.cluster.devices):
        answer.print("why idle      --explain looks for plans with them")
