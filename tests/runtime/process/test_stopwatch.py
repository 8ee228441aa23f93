"""The stopwatch of a GPU: what the observer takes counts only where the device waits for it."""

from __future__ import annotations

import time

import pytest
import torch

from heterps_runtime.process.stopwatch import Stopwatch


class _Device:
    """Works through what the host launches; the host's clock stands still but for `host`."""

    now_s, free_s = 100.0, 0.0

    def host(self, seconds: float, work_s: float = 0.0) -> None:
        """The host takes some time and launches some work at the end of it."""
        self.now_s += seconds
        self.free_s = max(self.free_s, self.now_s) + work_s

    def event(self) -> float:
        """When an event that is recorded now comes."""
        return max(self.free_s, self.now_s)


class _Event:
    device: _Device

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self, stream: object) -> None:
        self.at_s = self.device.event()

    def elapsed_time(self, end: _Event) -> float:
        return (end.at_s - self.at_s) * 1000


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> _Device:
    found = _Device()
    monkeypatch.setattr(_Event, "device", found, raising=False)
    monkeypatch.setattr(torch.cuda, "Event", _Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    monkeypatch.setattr(time, "perf_counter", lambda: found.now_s)

    def wait(self: Stopwatch) -> None:
        found.now_s = max(found.now_s, found.free_s)

    monkeypatch.setattr(Stopwatch, "_wait", wait)
    return found


def _observed_layer_s(device: _Device, launch_s: float, work_s: float) -> float:
    """Seconds of the second of three equal layers, with an observer that takes 2 s in each."""
    watch, moments = Stopwatch("cuda:0"), []
    for _ in range(3):
        moments.append(watch.now())
        watch.pause()
        device.host(2.0)
        watch.resume()
        device.host(launch_s, work_s)
    moments.append(watch.now())
    watch.synchronize()
    return watch.seconds(moments[1], moments[2])


def test_a_device_that_waits_for_launches_is_not_charged_with_the_observer(device: _Device) -> None:
    assert _observed_layer_s(device, launch_s=5.0, work_s=1.0) == pytest.approx(5.0)


def test_a_device_that_is_behind_the_host_takes_what_it_takes(device: _Device) -> None:
    assert _observed_layer_s(device, launch_s=1.0, work_s=20.0) == pytest.approx(20.0)


def test_the_observer_counts_as_far_as_the_device_has_waited(device: _Device) -> None:
    # 6.5 s of work beside 5 + 2 s of the host: without the observer the device has no gaps.
    assert _observed_layer_s(device, launch_s=5.0, work_s=6.5) == pytest.approx(6.5)


def test_what_a_hook_costs_is_taken_off_in_the_same_way(device: _Device) -> None:
    watch = Stopwatch("cuda:0")
    start = watch.now()
    device.host(3.0, 0.5)
    end = watch.now()
    watch.synchronize()
    assert watch.seconds(start, end) == pytest.approx(3.5)
    assert watch.seconds(start, end, 2.0) == pytest.approx(1.5)


def test_what_a_host_launches_behind_other_work_takes_the_devices_time_alone(
    device: _Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: device.host(0.0, 50.0))
    watch = Stopwatch("cuda:0")
    watch.now()
    watch.fall_behind()
    start = watch.now()
    device.host(5.0, 0.25)
    end = watch.now()
    watch.synchronize()
    assert watch.seconds(start, end) == pytest.approx(0.25)
    assert watch.launch_seconds(start, end) == pytest.approx(5.0)


def test_launching_is_told_without_the_observer(device: _Device) -> None:
    watch = Stopwatch("cuda:0")
    start = watch.now()
    watch.pause()
    device.host(2.0)
    watch.resume()
    device.host(3.0, 20.0)
    end = watch.now()
    watch.synchronize()
    assert watch.launch_seconds(start, end) == pytest.approx(3.0)
    assert watch.launch_seconds(start, end, 1.0) == pytest.approx(2.0)
