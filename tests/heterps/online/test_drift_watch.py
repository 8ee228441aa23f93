"""The watch of an online run: which figures it compares, what it says, what it leaves out."""

from __future__ import annotations

from pathlib import Path

import pytest

from heterps.online.drift_watch import DriftWatch, ToldDrift, ratios_of
from heterps_configs.documents.run_events import RunEvent
from heterps_configs.documents.run_settings import RunSettings
from heterps_envs.online.drift_monitor import Subject
from heterps_runtime.results.link_times import Route, RouteSeconds
from heterps_runtime.results.progress import StepProgress
from heterps_runtime.results.step_figures import StagePasses, StepFigures
from heterps_runtime.run.hooks import RunHooks
from heterps_runtime.run.run_plan import run_plan
from tests.runtime.small_runs import chain_of, problem_of

STAGES = (
    StagePasses("fast", "s0", 1.0, 2.0),
    StagePasses("slow", "s1", 1.0, 2.0),
    StagePasses("slow", "s2", 3.0, 4.0),
)
LINKS = (
    RouteSeconds(Route("fast", "slow", "s0", "forward"), 0.5),
    RouteSeconds(Route("fast", "slow", "s3", "backward"), 1.5),
    RouteSeconds(Route("slow", "fast", "s1", "backward"), 0.5),
)


def figures(slower: dict[str, float]) -> StepFigures:
    """Stages and routes, some of them slower."""
    return StepFigures(
        1.0,
        stages=tuple(
            StagePasses(p.device, p.stage, p.forward_s * f, p.backward_s * f)
            for p in STAGES
            for f in (slower.get(p.device, slower.get(p.stage, 1.0)),)
        ),
        links=tuple(
            RouteSeconds(route, seconds * slower.get(f"{route.source}->{route.destination}", 1.0))
            for route, seconds in LINKS
        ),
    )


def progress(step: int, slower: dict[str, float], generation: int = 0) -> StepProgress:
    return StepProgress(
        step=step,
        num_steps=100,
        loss=1.0,
        generation=generation,
        measured=figures(slower),
        # The newest plan was predicted with what has been learned; drift is told without it.
        predicted=figures(slower),
        memory_limit_bytes={},
        unlearned=figures({}),
    )


def test_devices_links_and_stages_that_share_a_device_are_watched() -> None:
    found = ratios_of(progress(0, {"s2": 2.0, "fast->slow": 3.0}))
    assert found == {
        Subject("device", "fast"): 1.0,
        Subject("device", "slow"): pytest.approx(1.7),
        Subject("stage", "s1 on slow"): 1.0,
        Subject("stage", "s2 on slow"): 2.0,
        Subject("link", "fast->slow"): 3.0,
        Subject("link", "slow->fast"): 1.0,
    }


def test_drift_is_told_once_with_its_step_and_stays_in_the_line_of_progress() -> None:
    messages: list[str] = []
    watch = DriftWatch(messages.append)
    for step in range(20):
        watch.take(progress(step, {"fast": 2.0} if step >= 8 else {}))
    assert messages[0].startswith("step 13: fast takes 2.00 x its predicted time since step 9 (")
    assert len(messages) == len(watch.events) == 1
    assert watch.text == "drift fast 2.00 x"
    for step in range(20, 40):
        watch.take(progress(step, {}))
    assert messages[1].startswith("step 25: fast takes its predicted time again")
    assert watch.text == ""


def test_drift_that_people_know_is_not_told_again() -> None:
    messages: list[str] = []
    told = ToldDrift()
    watch = DriftWatch(messages.append, told)
    assert told.is_news("fast", 2.05)
    for step in range(20):
        watch.take(progress(step, {"fast": 2.0} if step >= 8 else {}))
    assert messages == []
    assert len(watch.events) == 1
    assert not told.is_news("fast", 1.95)
    assert told.is_news("fast", 1.0)


def test_the_first_steps_of_each_plan_do_not_count() -> None:
    watch = DriftWatch()
    for step in range(40):
        generation, first = divmod(step, 10)
        watch.take(progress(step, {"fast": 50.0} if first < 2 else {}, generation))
    assert watch.events == []


def test_a_new_plan_keeps_what_is_known_of_a_device() -> None:
    watch = DriftWatch()
    for step in range(40):
        watch.take(progress(step, {"fast": 2.0, "fast->slow": 4.0}, generation=step // 20))
    assert [str(event.subject) for event in watch.events] == ["fast", "fast->slow"]


def test_a_step_without_figures_tells_nothing() -> None:
    bare = progress(5, {})
    unmeasured = StepProgress(**{**vars(bare), "measured": StepFigures(1.0)})
    assert ratios_of(unmeasured) == {}


@pytest.mark.slow
@pytest.mark.alone
def test_a_run_tells_the_device_and_the_link_that_were_slowed_down(tmp_path: Path) -> None:
    # The host needs about 0.2 ms for what takes these devices 4 ms and more.
    problem, watch = problem_of("sequential", slowdowns=(4, 4, 8, 8), step_s=0.01), DriftWatch()

    def on_progress(progress: StepProgress) -> None:
        watch.take(progress)

    run_plan(
        problem,
        chain_of(problem, 3, 6),
        RunSettings(steps=24, run_directory=str(tmp_path), measures_links=True),
        events=[
            RunEvent(step=6, slow="d1", factor=3),
            RunEvent(step=14, slow="d1->d0", factor=4),
        ],
        hooks=RunHooks(on_progress=on_progress),
    )
    factors = {str(subject): factor for subject, factor in watch.monitor.factors().items()}
    assert factors["d1"] == pytest.approx(3, rel=0.1)
    assert factors["d1->d0"] == pytest.approx(4, rel=0.05)
    since = {str(event.subject): event.since_step for event in watch.events}
    assert since["d1"] == 6
    assert since["d1->d0"] == 14
    others = [factor for name, factor in factors.items() if name not in ("d1", "d1->d0")]
    assert max(others) < 1.5
