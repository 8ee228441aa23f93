"""Run specifications survive their file, and say what is wrong with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from heterps_configs.documents.run_events import RunEvent
from heterps_configs.documents.run_settings import RunSettings
from heterps_configs.errors import DocumentError, HeterpsError
from heterps_envs.schedule.build import build_schedule
from heterps_envs.simulator.simulate import simulate
from heterps_runtime.specification.build import build_specification, emulation_of, replanned
from heterps_runtime.specification.run import RunSpecification
from tests.runtime.group_plans import grouped
from tests.runtime.small_runs import DEVICES, chain_of, problem_of


def _specification(**options: object) -> RunSpecification:
    problem = problem_of("sequential", slowdowns=(1, 2, 4, 4), global_batch_size=14)
    plan = chain_of(problem, 3)
    schedule = build_schedule(problem, plan)
    given: Any = {"devices": DEVICES, **options}
    return build_specification(problem, plan, schedule, RunSettings(steps=3), **given)


def test_file_holds_all_of_it(tmp_path: Path) -> None:
    specification = _specification(events=[RunEvent(step=4, slow="d1", factor=3)])
    specification.to_json_file(tmp_path / "run.json")
    read = RunSpecification.from_json_file(tmp_path / "run.json")
    assert read == specification
    assert read.actions["d0"][0].kind == "forward"


def test_rank_is_the_position_of_the_device() -> None:
    assert _specification().ranks == {"d0": 0, "d1": 1, "d2": 2, "d3": 3}


def test_slowdowns_multiply_from_their_step_on() -> None:
    slowdowns = [
        RunEvent(step=4, slow="d1", factor=3),
        RunEvent(step=6, slow="d1", factor=2),
    ]
    specification = _specification(events=slowdowns)
    assert [specification.slowdown("d1", step) for step in (3, 4, 6)] == [1, 3, 6]
    assert specification.slowdown("d0", 6) == 1


def test_a_group_is_as_slow_as_its_slowest_device() -> None:
    problem = problem_of("sequential", slowdowns=(1, 2, 4, 4))
    plan = grouped(problem, {"a": ("d0", "d1"), "b": ("d2", "d3")})
    specification = build_specification(
        problem, plan, build_schedule(problem, plan), RunSettings(steps=9), devices=DEVICES,
        events=[RunEvent(step=4, slow="d0", factor=3), RunEvent(step=6, slow="d3", factor=5)],
    )  # fmt: skip
    # Half as slow as the other one of its group, the first device only holds it up once slowed.
    assert [specification.own_slowdown("d0", step) for step in (3, 4)] == [0.5, 1.5]
    assert [specification.group_slowdown("d0", step) for step in (3, 4)] == [1, 1.5]
    assert specification.group_slowdown("d1", 4) == 1.5
    assert [specification.group_slowdown("d2", step) for step in (5, 6)] == [1, 5]
    assert specification.own_slowdown("d2", 6) == 1


def test_slowdowns_of_links_multiply_too_and_leave_devices_alone() -> None:
    slowdowns = [
        RunEvent(step=4, slow="d0->d1", factor=3),
        RunEvent(step=6, slow="d0->d1", factor=2),
        RunEvent(step=6, slow="d1->d0", factor=0.5),
    ]
    specification = _specification(events=slowdowns)
    assert specification.link_slowdowns(3) == {}
    assert specification.link_slowdowns(6) == {("d0", "d1"): 6, ("d1", "d0"): 0.5}
    assert specification.slowdown("d0", 6) == 1


def test_only_what_gets_slow_is_for_the_ranks() -> None:
    events = [RunEvent(step=3, lose="d0"), RunEvent(step=4, slow="d1", factor=3)]
    assert _specification(events=events).slowdowns == tuple(events[1:])


def test_device_without_a_rank_is_refused() -> None:
    with pytest.raises(ValueError, match="no rank for d1"):
        _specification(devices=("d0",))


def test_broken_file_names_its_problem(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    with pytest.raises(HeterpsError, match="cannot be read"):
        RunSpecification.from_json_file(path)
    path.write_text('{"num_steps": 0}')
    with pytest.raises(DocumentError, match="num_steps"):
        RunSpecification.from_json_file(path)


def test_emulated_times_are_those_of_the_simulator() -> None:
    problem = problem_of("sequential", slowdowns=(1, 2, 4, 4), global_batch_size=14)
    plan = chain_of(problem, 3)
    emulation = emulation_of(problem, plan, build_schedule(problem, plan))
    assert emulation is not None
    assert [entry.device for entry in emulation.devices] == list(DEVICES)
    for event in simulate(problem, plan).timeline:
        device = next(entry for entry in emulation.devices if entry.device == event.device)
        if event.action in ("forward", "backward"):
            targets = device.forward_s if event.action == "forward" else device.backward_s
            seconds = targets[event.stage][event.micro_batch]
            assert seconds == pytest.approx(event.end_s - event.start_s)
        if event.action == "step":
            assert device.optimizer_s == pytest.approx(event.end_s - event.start_s)


def test_real_devices_are_not_emulated() -> None:
    problem = problem_of("sequential")
    plan = chain_of(problem, 3)
    assert emulation_of(problem, plan, build_schedule(problem, plan)) is None


def test_next_generation_keeps_the_run() -> None:
    problem = problem_of("sequential", slowdowns=(1, 2, 4, 4), global_batch_size=14)
    plan = chain_of(problem, 5)
    first = _specification().changed(seed=7)
    second = replanned(first, problem, plan, build_schedule(problem, plan), from_step=2)
    assert (second.generation, second.from_step, second.seed) == (1, 2, 7)
    assert second.plan == plan
