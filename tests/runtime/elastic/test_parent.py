"""What the parent of an elastic run knows when steps come again, late, or were never reported."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from heterps_configs.documents.run_settings import RunSettings
from heterps_envs.schedule.build import build_schedule
from heterps_runtime.elastic.parent import ElasticState
from heterps_runtime.results.progress import StepProgress
from heterps_runtime.run.hooks import PlanUpdate, RunHooks
from heterps_runtime.specification.build import build_specification
from tests.runtime.elastic.small_runs import chain, elastic_problem


class _Run:
    """A state with two generations, and what it showed."""

    def __init__(self, directory: Path) -> None:
        self.shown: list[StepProgress] = []
        problem = elastic_problem()
        plan = chain(problem, ("d0", "d1", "d2"))
        schedule = build_schedule(problem, plan)
        specification = build_specification(
            problem, plan, schedule, RunSettings(steps=20), devices=plan.devices
        )
        self.state = ElasticState(
            problem, specification, directory, RunHooks(on_progress=self.shown.append)
        )
        self.state.predict(problem, plan, schedule)
        update = PlanUpdate(chain(problem, ("d0", "d2")), problem, 4)
        self.adopted = self.state.adopt(update, ["d0", "d2"])
        self.state.describe_adopted(update)

    def tell(
        self, step: int, generation: int, loss: float = 1.0, busy_s: Mapping[str, float] = {}
    ) -> None:
        figures = [[seconds, 0.01, 0.02] for seconds in busy_s.values()]
        line: dict[str, Any] = {
            "step": step,
            "loss": loss,
            "step_time_s": 0.1,
            "generation": generation,
            "figures": figures,
        }
        self.state.on_line(line)

    @property
    def steps(self) -> list[tuple[int, int]]:
        done = self.state.done
        return list(zip(done.steps, done.generations, strict=True))


@pytest.fixture
def run(tmp_path: Path) -> _Run:
    return _Run(tmp_path)


def test_a_new_generation_has_ranks_of_its_own(run: _Run) -> None:
    assert (run.adopted.generation, run.adopted.devices) == (1, ("d0", "d2"))
    assert run.adopted.ranks == {"d0": 0, "d2": 1}
    assert run.adopted.torch_devices == ("cpu", "cpu")


def test_steps_that_are_run_again_replace_those_that_were_taken_back(run: _Run) -> None:
    for step in range(4):
        run.tell(step, 0)
    run.tell(2, 1)
    assert run.steps == [(0, 0), (1, 0), (2, 1)]
    assert run.state.next_step == 3
    run.tell(3, 1)
    assert [step.step for step in run.shown] == [0, 1, 2, 3, 2, 3]


def test_figures_of_steps_that_come_again_are_taken_back_with_them(run: _Run) -> None:
    for step in range(4):
        run.tell(step, 0, busy_s={"d0": 0.08, "d1": 0.05, "d2": 0.06})
    run.tell(3, 1, busy_s={"d0": 0.09, "d2": 0.02})
    steps = range(4)
    of_first, of_lost = (run.state.done.bubbles(name, steps) for name in ("d0", "d1"))
    assert [seconds for seconds, _ in of_first] == [0.1] * 4
    assert [share for _, share in of_first] == pytest.approx([0.2, 0.2, 0.2, 0.1])
    assert [share for _, share in of_lost] == pytest.approx([0.5] * 3)
    assert run.state.done.bubbles("d3", steps) == []


def test_a_late_line_of_a_lost_rank_takes_nothing_back(run: _Run) -> None:
    for step in range(3):
        run.tell(step, 0)
    run.tell(2, 1)
    run.tell(3, 1)
    run.tell(2, 0)
    assert run.steps == [(0, 0), (1, 0), (2, 1), (3, 1)]


def test_a_committed_step_that_nobody_reported_has_its_loss(run: _Run) -> None:
    run.tell(0, 0)
    run.state.on_line({"committed": {"step": 1, "loss": 0.75, "generation": 0}})
    run.state.on_line({"committed": {"step": 1, "loss": 0.75, "generation": 0}})
    run.tell(2, 1)
    assert run.steps == [(0, 0), (1, 0), (2, 1)]
    assert run.shown[1].loss == 0.75


def test_a_plan_of_a_controller_waits_for_the_supervisor(run: _Run) -> None:
    problem = elastic_problem()
    update = PlanUpdate(chain(problem, ("d0", "d3")), problem)
    run.state.write_update(update)
    assert run.state.updates == [update]
    assert run.state.newest.generation == 1
