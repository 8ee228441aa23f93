"""What moves when a plan follows another: bytes with and without equal devices exchanged."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import NamedTuple

from benchmarks.agent.section import Row, TableRows
from benchmarks.online.real_drift_cases import believed_problem, best_plan
from benchmarks.online.section import SectionResult, Target
from benchmarks.shared.row_store import Settings
from heterps.planning.place import place
from heterps_configs.documents.job import Job
from heterps_configs.documents.plan import Plan
from heterps_configs.documents.run_settings import RunSettings
from heterps_configs.library import load_cluster, load_profile
from heterps_envs.closed_form.fewer_devices import without_devices
from heterps_envs.online.correction import StageMeasurement, correct
from heterps_envs.online.equal_devices import keep_in_place
from heterps_envs.online.state_moves import Move, move_s, moved_bytes, state_moves
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import estimate
from heterps_runtime.run.hooks import PlanUpdate
from heterps_runtime.run.run_plan import run_plan

TITLE = "Moves from plan to plan"
TARGETS = [
    Target("migration of unchanged layers, real run", "unchanged_bytes", 0, unit="bytes"),
    Target("step time changed by exchanging equal devices", "step_time_change", 0, unit="%"),
]

CASES = (
    ("bert-large", "a100-v100-t4"), ("bert-large", "spot-two-regions"), ("gpt2", "eight-types"),
    ("llama-7b", "h100-pod"), ("resnet-152", "a100-v100-t4"), ("vit-large", "spot-two-regions"),
)  # fmt: skip
JOB = Job(global_batch_size=64, micro_batch_size=2, dtype="bfloat16")
SLOWDOWN = 2.0
# A real move every so many steps, after the warm-up of a plan.
STEPS_BETWEEN = 3
LIMIT_S = 300.0


class _Change(NamedTuple):
    what: str
    problem: Problem
    is_undone: bool = False


def run(settings: Settings) -> SectionResult:
    """Plans for changed clusters, and moves of a real run."""
    store = settings.store("moves", cases=CASES)
    cases = CASES[:2] if settings.quick else CASES
    rows: list[Row] = []
    for model, cluster in cases:
        key = f"{model} on {cluster}"
        if key not in store:
            store.add(key, {"rows": list(_planned_rows(model, cluster))})
        rows += store[key]["rows"]
    real = _real_rows()
    summary: Row = {
        "unchanged_bytes": real[0]["measured_bytes"],
        "step_time_change": max(abs(row["step_time_change"]) for row in rows),
        "kept_share": 1 - _sum(rows, "moved_gib") / _sum(rows, "named_gib"),
        "real_move_s": statistics.median(row["measured_s"] for row in real),
    }
    note = (
        "The plan of a cluster and those of the changed one, all by `auto`: its first device gets "
        "slower, or it is lost and comes back. `named`: moved to the "
        "devices that the new plan happens to name; `moved`: equal devices exchanged so that the "
        "fewest bytes move. Predicted seconds over the cluster's links."
    )
    real_note = (
        "Four emulated devices, one process each: to the same plan, to one with other cuts, and "
        "back. Emulated links carry no states: seconds are those of this host."
    )
    return SectionResult(
        [
            TableRows("planned", "Moves, planned", note, rows),
            TableRows("real", "Moves, real", real_note, real),
        ],
        summary,
        store,
    )


def _planned_rows(model: str, cluster: str) -> Iterator[Row]:
    problem = Problem(load_profile(model), load_cluster(cluster), JOB)
    old = place(problem).plan
    state = _gib(state_moves(problem, _on_one_device(old), old))
    for change in _changes(problem, old):
        new = place(change.problem).plan
        kept = keep_in_place(change.problem, old, new)
        before, after = (estimate(change.problem, plan).step_time_s for plan in (new, kept))
        named, moved = (state_moves(change.problem, old, plan) for plan in (new, kept))
        yield {
            "case": f"{model} on {cluster}",
            "change": change.what,
            "state_gib": state,
            "named_gib": _gib(named),
            "moved_gib": _gib(moved),
            "named_s": move_s(change.problem, named),
            "moved_s": move_s(change.problem, moved),
            "step_time_change": after / before - 1,
        }
        if not change.is_undone:
            old = kept


def _changes(problem: Problem, plan: Plan) -> Iterator[_Change]:
    """The first device of the plan is slower and as before; then it is lost, and comes back."""
    slow = plan.devices[0]
    column, measured = problem.class_of[slow], list[StageMeasurement]()
    for stage in plan.stages:
        if slow in stage.devices:
            layers = slice(stage.first_layer, stage.last_layer + 1)
            tables = problem.tables
            forward_s, backward_s = (
                SLOWDOWN * float(times[layers, column].sum())
                for times in (tables.forward_s, tables.backward_s)
            )
            measured.append(
                StageMeasurement(slow, stage.first_layer, stage.last_layer, forward_s, backward_s)
            )
    yield _Change(f"{slow} {SLOWDOWN:g} x slower", correct(problem, measured), is_undone=True)
    yield _Change(f"{slow} lost", without_devices(problem, [slow]))
    yield _Change(f"{slow} back", problem)


def _real_rows() -> list[Row]:
    problem = believed_problem()
    first = best_plan(problem)
    other = _with_other_cuts(first)
    plans = [first, first, other, first]
    updates = [
        PlanUpdate(plan, problem, from_step=STEPS_BETWEEN * number)
        for number, plan in enumerate(plans)
        if number
    ]
    result = run_plan(
        problem,
        first,
        RunSettings(steps=STEPS_BETWEEN * len(plans), timeout_s=LIMIT_S),
        updates=updates,
    )
    rows: list[Row] = []
    for before, after, done, what in zip(
        plans, plans[1:], result.replans, ("same plan", "other cuts", "back"), strict=False
    ):
        moves = state_moves(problem, before, after)
        rows.append(
            {
                "move": what,
                "predicted_bytes": moved_bytes(moves),
                "measured_bytes": done.bytes_moved,
                "measured_s": done.seconds,
            }
        )
    return rows


def _with_other_cuts(plan: Plan) -> Plan:
    """At every cut, the first layer behind it goes to the stages in front, if others stay."""
    cuts = {stage.first_layer for stage in plan.stages} - {0}
    for cut in cuts:
        if any(stage.first_layer == stage.last_layer == cut for stage in plan.stages):
            cuts = cuts - {cut}
    stages = tuple(
        stage.changed(
            first_layer=stage.first_layer + (stage.first_layer in cuts),
            last_layer=stage.last_layer + (stage.last_layer + 1 in cuts),
        )
        for stage in plan.stages
    )
    return Plan.model_validate({**plan.model_dump(), "stages": [s.model_dump() for s in stages]})


def _on_one_device(plan: Plan) -> Plan:
    """Its moves to a plan are all states that the plan needs, but for those of this device."""
    stages = tuple(s.changed(devices=("nowhere",)) for s in plan.stages)
    return plan.changed(stages=stages)


def _gib(moves: list[Move]) -> float:
    return moved_bytes(moves) / 2**30


def _sum(rows: list[Row], key: str) -> float:
    return sum(float(row[key]) for row in rows)
