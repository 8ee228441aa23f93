"""Replays of spot traces: seconds, steps and dollars that can be counted by hand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps_configs.documents.cluster import Link
from heterps_configs.documents.plan import Plan
from heterps_configs.errors import HeterpsError
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import estimate
from heterps_envs.spot.availability import SpotMoment
from heterps_envs.spot.costs import SpotSettings
from heterps_envs.spot.records import SpotAnswer, SpotChange, SpotResult
from heterps_envs.spot.replay import replay
from tests.envs.small_problems import chain_problem, plan_of

# Two layers of 1000 parameters: 4000 bytes of weights each, and plain SGD keeps nothing more.
LAYER_BYTES = 4000
DEVICES = ("d0-0", "d0-1", "d0-2", "d0-3")
COSTS = SpotSettings(
    detection_s=2,
    restart_s=30,
    planning_s=1,
    overhead_s=0.5,
    storage_bytes_per_s=1000,
    checkpoint_every_s=100,
    horizon_s=1000,
)


def problem() -> Problem:
    return chain_problem(
        [1.0, 1.0],
        [2.0, 2.0],
        num_micro_batches=4,
        counts=(4,),
        parameters=[1000, 1000],
        link=Link(latency_s=0.0, bandwidth_bytes_per_s=4000.0),
    )


def chains(problem: Problem, names: Sequence[str]) -> Plan:
    """A chain of two stages for each pair of devices."""
    pairs = [names[i : i + 2] for i in range(0, len(names) - 1, 2)]
    stages = {f"p{i}s{s}": (s, s, pair[s]) for i, pair in enumerate(pairs) for s in range(2)}
    routes: dict[tuple[str, ...], range] = {
        (f"p{i}s0", f"p{i}s1"): range(4)[i :: len(pairs)] for i in range(len(pairs))
    }  # fmt: skip
    return plan_of(problem, stages, routes)


@dataclass
class Pairs:
    """Survivors of the plan keep their places as far as possible."""

    restarts: bool
    name: str = "pairs"

    def answer(self, change: SpotChange) -> SpotAnswer | None:
        names = [device.name for device in change.left.cluster.devices]
        if len(names) < 2:
            return None
        return SpotAnswer(chains(change.problem, names), "pairs", COSTS.planning_s)


def moments(*changes: tuple[float, Iterable[int]]) -> list[SpotMoment]:
    price = dict.fromkeys(DEVICES, 3.6)
    return [
        SpotMoment(time_s, tuple(DEVICES[i] for i in there), price) for time_s, there in changes
    ]


def lived(
    *changes: tuple[float, Iterable[int]], until_s: float = 1000, restarts: bool = False
) -> SpotResult:
    return replay(problem(), moments(*changes), until_s, Pairs(restarts), COSTS)


def step_s(*names: int) -> float:
    return estimate(problem(), chains(problem(), [DEVICES[i] for i in names])).step_time_s


def test_without_changes_all_whole_steps_are_committed_and_nothing_is_lost() -> None:
    result = lived((0, range(4)))
    assert result.steps == int(1000 / step_s(0, 1, 2, 3))
    assert result.trained_s == 1000
    assert not any(result.lost_s.values())
    assert result.samples == 4 * result.steps
    # Four devices at 3.6 USD an hour for 1000 s.
    assert result.cost_usd == result.used_cost_usd == pytest.approx(4.0)
    assert result.usd_per_million_samples == pytest.approx(4.0 / result.samples * 1e6)


def test_a_lost_replica_costs_detection_planning_one_change_and_the_begun_step() -> None:
    step = step_s(0, 1, 2, 3)
    result = lived((0, range(4)), (step * 10.25, (0, 1)))
    assert result.lost_s == pytest.approx(
        {
            "detection": 2,
            "re-planning": 1,
            "restart": 0,
            "state": 0.5,
            "repeated steps": 0.25 * step,
            "too few devices": 0,
        }
    )
    left_s = 1000 - 10.25 * step - 3.5
    assert result.steps == 10 + int(left_s / step_s(0, 1))
    assert [entry.repeated_steps for entry in result.recoveries] == [0]
    assert result.recoveries[0].storage_bytes == result.recoveries[0].live_bytes == 0


def test_state_that_a_survivor_holds_comes_from_it_over_its_link() -> None:
    # Device 1 held layer 1, as 3 does; 2 held layer 0. The new pair is (2, 3) after 0 and 1 go;
    # when 1 and 2 go, device 3 holds layer 1 and stays in its place.
    result = lived((0, range(4)), (100, (0, 3)))
    assert (result.recoveries[0].live_bytes, result.lost_s["state"]) == (0, 0.5)
    moved = lived((0, range(4)), (100, (1, 2)))
    # Device 1 takes layer 0 from 2, and 2 takes layer 1 from 1: 4000 bytes at 4000 bytes/s.
    assert moved.recoveries[0].live_bytes == 2 * LAYER_BYTES
    assert moved.lost_s["state"] == pytest.approx(0.5 + 1)


def test_a_layer_that_nobody_holds_comes_from_storage_and_all_go_back_to_the_checkpoint() -> None:
    step = step_s(0, 1)
    # Stored by both devices of one node: 8000 bytes take 8 s, so at 208 s two are complete.
    result = lived((0, (0, 1)), (250, (0, 2)))
    done, kept = int(250 / step), int(200 / step)
    (entry,) = result.recoveries
    assert entry.repeated_steps == done - kept
    assert entry.storage_bytes == LAYER_BYTES
    assert result.lost_s["state"] == pytest.approx(0.5 + 4)
    assert result.lost_s["repeated steps"] == pytest.approx(250 - kept * step)
    assert result.steps == kept + int((1000 - 250 - 3 - 4.5) / step)


def test_a_restart_downloads_everything_and_repeats_what_was_not_stored() -> None:
    step = step_s(0, 1, 2, 3)
    result = lived((0, range(4)), (250, (0, 1)), restarts=True)
    kept = int(200 / step)
    assert result.lost_s["restart"] == 30
    assert result.lost_s["state"] == pytest.approx(2 * LAYER_BYTES / 1000)
    assert result.lost_s["repeated steps"] == pytest.approx(250 - kept * step)
    assert result.steps == kept + int((1000 - 250 - 3 - 30 - 8) / step_s(0, 1))


def test_a_loss_within_a_recovery_begins_it_anew() -> None:
    once = lived((0, range(4)), (100, (0, 1, 2)))
    twice = lived((0, range(4)), (100, (0, 1, 2)), (101.5, (0, 2)))
    # The first detection was cut short after 1.5 s; 0 and 2 hold layer 0 both, 1 was lost.
    assert twice.lost_s["detection"] == once.lost_s["detection"] + 1.5
    assert twice.recoveries[-1].lost_devices == ("d0-1", "d0-3")
    assert twice.recoveries[-1].storage_bytes == LAYER_BYTES


def test_too_few_devices_wait_and_start_again_from_storage() -> None:
    result = lived((0, (0, 1)), (250, (0,)), (400, (0, 1)))
    assert result.lost_s["too few devices"] == 150
    assert result.lost_s["restart"] == 30
    assert result.lost_s["detection"] == 0
    assert result.recoveries[-1].storage_bytes == 2 * LAYER_BYTES
    nobody = lived((0, (0, 1)), (250, ()), (400, (0, 1)))
    assert nobody.steps == result.steps
    assert nobody.cost_usd < result.cost_usd
    assert lived((0, ())).steps == 0


def test_devices_that_come_back_are_taken_in_at_the_end_of_a_step_where_it_pays() -> None:
    slow, fast = step_s(0, 1), step_s(0, 1, 2, 3)
    result = lived((0, (0, 1)), (slow * 4.5, range(4)))
    (entry,) = result.recoveries
    assert entry.is_join
    assert entry.time_s == pytest.approx(5 * slow)
    assert result.lost_s["repeated steps"] == result.lost_s["detection"] == 0
    # Two layers to two devices over links of their own.
    assert result.lost_s["state"] == pytest.approx(0.5 + 1)
    assert result.steps == 5 + int((1000 - 5 * slow - 1.5) / fast)
    impatient = SpotSettings(overhead_s=50, horizon_s=60)
    stays = replay(
        problem(), moments((0, (0, 1)), (40, range(4))), 1000, Pairs(False), impatient
    )  # fmt: skip
    assert not stays.recoveries
    assert stays.trained_s == 1000


@settings(max_examples=60)
@given(
    changes=st.lists(
        st.tuples(st.floats(0.1, 300), st.sets(st.integers(0, 3))), min_size=0, max_size=8
    ),
    restarts=st.booleans(),
    until_s=st.floats(10, 1500),
)
def test_every_second_is_trained_or_lost_for_one_cause(
    changes: list[tuple[float, set[int]]], restarts: bool, until_s: float
) -> None:
    time_s, history = 0.0, [(0.0, sorted(range(4)))]
    for wait_s, there in changes:
        time_s += wait_s
        history.append((time_s, sorted(there)))
    result = lived(*history, until_s=until_s, restarts=restarts)
    assert result.trained_s + sum(result.lost_s.values()) == pytest.approx(until_s)
    assert min(*result.lost_s.values(), result.trained_s) >= 0
    assert 0 <= result.steps <= until_s / step_s(0, 1, 2, 3) + 1e-6
    assert 0 <= result.used_cost_usd <= result.cost_usd * (1 + 1e-9)
    assert [p.time_s for p in result.history] == sorted(p.time_s for p in result.history)


def test_settings_refuse_what_no_replay_could_use() -> None:
    with pytest.raises(HeterpsError, match="detection_s must be at least 0, got -1"):
        SpotSettings(detection_s=-1)
    with pytest.raises(HeterpsError, match="checkpoint_every_s must be above 0"):
        SpotSettings(checkpoint_every_s=0)
    with pytest.raises(HeterpsError, match="storage_bytes_per_s must be at least"):
        SpotSettings(storage_bytes_per_s=1e-30)
