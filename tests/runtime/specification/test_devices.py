"""Where ranks compute, what carries their messages, and the copies on the way to and from GPUs."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from heterps_configs.documents.cluster import Cluster, DeviceGroup, Link, Node
from heterps_configs.documents.device import DeviceType, Emulation
from heterps_configs.documents.plan import Plan
from heterps_configs.documents.run_settings import RunSettings
from heterps_configs.errors import HeterpsError
from heterps_envs.problem import Problem
from heterps_envs.schedule.build import build_schedule
from heterps_runtime.execution import cuda_clock
from heterps_runtime.execution.action_records import ActionRecord
from heterps_runtime.execution.cuda_clock import CudaClock
from heterps_runtime.specification.build import build_specification
from heterps_runtime.specification.devices import (
    Place,
    available_device,
    backend_of,
    remarks_of_missing,
    torch_devices,
)
from heterps_runtime.specification.run import RunSpecification
from heterps_runtime.transport.communication import Communicator
from heterps_runtime.transport.device_messenger import (
    Channel,
    DeviceMessenger,
    channels_of,
    messenger_for,
    nccl_channels,
)
from heterps_runtime.transport.messenger import Direction, ProcessMessenger
from tests.runtime.small_runs import chain_of, plan_of, problem_of

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def _type(name: str, kind: str, *, is_emulated: bool = False) -> DeviceType:
    return DeviceType.model_validate(
        {
            "name": name,
            "kind": kind,
            "memory_bytes": 2**30,
            "peak_flops_per_s": {"float32": 1e12},
            "memory_bandwidth_bytes_per_s": 1e11,
            "price_usd_per_hour": 1.0,
            "emulation": Emulation(host_device_type="host-cpu", slowdown=2)
            if is_emulated
            else None,
        }
    )


def _mixed_cluster() -> Cluster:
    link = Link(latency_s=1e-5, bandwidth_bytes_per_s=1e9)

    def node(name: str, *groups: DeviceGroup) -> Node:
        return Node(name=name, devices=groups, link=link)

    return Cluster(
        name="mixed",
        device_types=(
            _type("card", "gpu"),
            _type("processor", "cpu"),
            _type("pretended", "gpu", is_emulated=True),
        ),
        nodes=(
            node("a", DeviceGroup(name="cpu", type="processor"),
                 DeviceGroup(name="gpu", type="card", count=2)),
            node("b", DeviceGroup(name="other", type="card"),
                 DeviceGroup(name="fake", type="pretended")),
        ),
        inter_node_link=link,
    )  # fmt: skip


def test_gpus_are_counted_in_their_node_and_emulated_ones_compute_on_the_cpu() -> None:
    names = ("other", "gpu-1", "cpu", "fake", "gpu-0")
    assert torch_devices(_mixed_cluster(), names) == ("cuda:0", "cuda:1", "cpu", "cpu", "cuda:0")


def test_a_host_without_cuda_computes_on_its_cpu_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert available_device("cuda:1") == torch.device("cpu")
    places = [Place("m", "cpu"), Place("m", "cpu")]
    (remark,) = remarks_of_missing({"gpu-0": "cuda:0", "cpu": "cpu"}, places)
    assert "for gpu-0: computing on the CPU" in remark
    assert remarks_of_missing({"a": "cpu", "b": "cpu"}, places) == []


def test_a_host_with_fewer_gpus_than_the_cluster_says_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(HeterpsError, match=r"cuda:1: this host has 1 CUDA device"):
        available_device("cuda:1")


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        (("a cuda:0", "a cuda:1"), "nccl"),
        (("a cuda:0", "b cuda:0"), "nccl"),
        (("a cuda:0", "a cuda:0"), "gloo"),  # two ranks cannot share a GPU under nccl
        (("a cuda:0", "a cpu"), "gloo"),
        (("a cpu", "a cpu"), "gloo"),
        (("a cuda:0",), "gloo"),
    ],
)
def test_nccl_carries_what_only_gpus_of_their_own_take_part_in(
    devices: tuple[str, ...], expected: str
) -> None:
    places = [Place(*device.split()) for device in devices]
    assert backend_of(range(len(places)), places) == expected


# -- channels


def _specification(problem: Problem, plan: Plan) -> RunSpecification:
    schedule = build_schedule(problem, plan)
    return build_specification(problem, plan, schedule, RunSettings(steps=1), devices=plan.devices)


def test_a_chain_has_a_channel_for_each_neighbour_and_direction_in_the_order_of_sends() -> None:
    problem = problem_of("sequential")
    specification = _specification(problem, chain_of(problem, 3, 6))
    assert channels_of(specification) == {
        Channel(0, 1, "forward"): True,
        Channel(1, 0, "backward"): True,
        Channel(1, 2, "forward"): True,
        Channel(2, 1, "backward"): True,
    }
    places = [Place("a", "cuda:0"), Place("a", "cuda:1"), Place("b", "cpu")]
    assert nccl_channels(specification, places) == [
        Channel(0, 1, "forward"),
        Channel(1, 0, "backward"),
    ]


@pytest.mark.slow
@given(st.sampled_from(["gpipe", "1f1b", "zero-bubble"]), st.permutations(range(4)))
def test_channels_of_shared_stages_know_every_message(schedule: str, order: Sequence[int]) -> None:
    problem = problem_of("sequential", schedule=schedule)
    plan = plan_of(
        problem,
        {"front": (0, 3, "d0"), "left": (4, -1, "d1"), "right": (4, -1, "d2")},
        {("front", "left"): sorted(order[:2]), ("front", "right"): sorted(order[2:])},
    )
    found = channels_of(_specification(problem, plan))
    assert {tuple(channel[:2]) for channel in found} == {(0, 1), (1, 0), (0, 2), (2, 0)}


def test_messages_that_are_received_in_another_order_go_over_gloo() -> None:
    problem = problem_of("sequential")
    specification = _specification(problem, chain_of(problem, 3))
    actions = list(specification.actions["d1"])
    receives = [i for i, action in enumerate(actions) if action.kind == "receive"]
    first, second = receives[:2]
    actions[first], actions[second] = actions[second], actions[first]
    swapped = specification.changed(actions={**specification.actions, "d1": tuple(actions)})
    places = [Place("a", "cuda:0"), Place("a", "cuda:1")]
    assert channels_of(swapped)[Channel(0, 1, "forward")] is False
    assert nccl_channels(swapped, places) == [Channel(1, 0, "backward")]


# -- messages


class _Done:
    def __init__(self, wait: Callable[[], None] = lambda: None) -> None:
        self._wait = wait

    def wait(self) -> None:
        self._wait()

    def is_completed(self) -> bool:
        return True


class _Group:
    """Both ends of a process group: what is sent is received next."""

    def __init__(self) -> None:
        self._sent: queue.Queue[Tensor] = queue.Queue()
        self.seen: list[tuple[str, int, int]] = []

    def send(self, tensors: list[Tensor], destination: int, tag: int) -> _Done:
        self.seen.append(("send", destination, tag))
        self._sent.put(tensors[0].clone())
        return _Done()

    def recv(self, tensors: list[Tensor], source: int, tag: int) -> _Done:
        self.seen.append(("recv", source, tag))
        return _Done(lambda: cast(None, tensors[0].copy_(self._sent.get(timeout=10))))


class _Communicator:
    rank = 0
    device = torch.device("cpu")
    places = (Place("a", "cpu"), Place("a", "cpu"))
    connect_timeout = None

    def __init__(self) -> None:
        self.directions = {"forward": _Group(), "backward": _Group()}


class _StagingOnTheCpu(DeviceMessenger):
    """The same copies as for a GPU; the copy is late, as on a busy device."""

    copied = False

    def _is_staged(self, buffer: Tensor) -> bool:
        return True

    def _copy_mark(self, buffer: Tensor) -> Callable[[], None]:
        def wait() -> None:
            time.sleep(0.05)
            self.copied = True

        return wait


def test_staged_messages_leave_after_their_copy_and_arrive_in_the_buffer() -> None:
    communicator = _Communicator()
    messenger = _StagingOnTheCpu(cast(Communicator, communicator), {})
    direction: Direction = "forward"
    sent, buffer = torch.arange(6.0).view(2, 3), torch.zeros(2, 3)
    arriving = messenger.receive(buffer, 1, direction, 7)
    leaving = messenger.send(sent, 1, direction, 7)
    assert not messenger.copied, "sending does not wait for the device"
    sent_before = sent.clone()
    sent.zero_()
    leaving.wait()
    assert messenger.copied
    assert leaving.is_completed()
    assert torch.equal(buffer, torch.zeros(2, 3))
    arriving.wait()
    assert arriving.is_completed()
    assert torch.equal(buffer, sent_before)
    group = communicator.directions["forward"]
    assert group.seen == [("recv", 1, 7), ("send", 1, 7)]


def test_a_staged_sum_begins_after_its_copy_and_replaces_the_tensor() -> None:
    communicator = cast(Any, _Communicator())
    communicator.backend_of = lambda ranks: "gloo"
    communicator.groups = lambda owners: {}
    messenger = _StagingOnTheCpu(communicator, {})

    class _Doubling:
        def start_sum(self, flat: Tensor, ranks: tuple[int, ...]) -> _Done:
            assert messenger.copied, "the copy is not there yet"
            assert ranks == (0, 1)
            return _Done(lambda: cast(None, flat.mul_(2)))

    messenger._plain = cast(Any, _Doubling())
    flat = torch.arange(4.0)
    work = messenger.start_sum(flat, (0, 1))
    assert not messenger.copied, "starting a sum does not wait for the device"
    work.wait()
    assert torch.equal(flat, 2 * torch.arange(4.0))


def test_a_pair_of_gpus_uses_its_own_group_and_the_rank_within_it() -> None:
    groups = {Channel(0, 2, "forward"): _Group(), Channel(2, 0, "backward"): _Group()}
    communicator = cast(Communicator, _Communicator())
    messenger = DeviceMessenger(communicator, cast(Any, groups))
    messenger.send(torch.ones(2), 2, "forward", 5)
    messenger.receive(torch.ones(2), 2, "backward", 5)
    assert groups[Channel(0, 2, "forward")].seen == [("send", 1, 0)]
    assert groups[Channel(2, 0, "backward")].seen == [("recv", 1, 0)]


def test_ranks_on_cpus_alone_take_the_short_way() -> None:
    problem = problem_of("sequential")
    specification = _specification(problem, chain_of(problem, 3))
    found = messenger_for(specification, cast(Communicator, _Communicator()))
    assert isinstance(found, ProcessMessenger)


# -- times


class _Event:
    """A moment of a pretended device that takes 3 ms for every action."""

    now_s = 0.0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self, stream: object) -> None:
        self.at_s = _Event.now_s
        _Event.now_s += 0.003

    def elapsed_time(self, end: _Event) -> float:
        return (end.at_s - self.at_s) * 1000


def test_records_get_the_times_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", _Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    monkeypatch.setattr(cuda_clock.CudaClock, "_synchronize", lambda self: None)
    clock = CudaClock(torch.device("cuda:0"))
    start_s = time.perf_counter()
    clock.start_step(start_s)
    records = []
    for kind in ("forward", "send", "backward"):
        now_s = time.perf_counter() - start_s
        if kind == "send":
            records.append(ActionRecord(kind, "s", 0, now_s, now_s))
            continue
        clock.begin()
        span = clock.finish(0.0)
        records.append(ActionRecord(kind, "s", 0, span.start_s - start_s, span.end_s - start_s))
    forward, send, backward = clock.settled(records)
    assert send == records[1]
    assert forward.end_s - forward.start_s == pytest.approx(0.003)
    assert backward.start_s - forward.end_s == pytest.approx(0.003)


@needs_cuda
def test_a_real_device_carries_staged_messages_and_times() -> None:
    device = available_device("cuda:0")
    communicator = _Communicator()
    messenger = DeviceMessenger(cast(Communicator, communicator), {})
    sent, buffer = torch.randn(1000, device=device), torch.zeros(1000, device=device)
    arriving = messenger.receive(buffer, 1, "forward", 0)
    messenger.send(sent, 1, "forward", 0).wait()
    arriving.wait()
    assert torch.equal(sent, buffer)
    clock = CudaClock(device)
    start_s = time.perf_counter()
    clock.start_step(start_s)
    clock.begin()
    torch.randn(2000, 2000, device=device) @ torch.randn(2000, 2000, device=device)
    span = clock.finish(0.0)
    record = ActionRecord("forward", "s", 0, span.start_s - start_s, span.end_s - start_s)
    (timed,) = clock.settled([record])
    assert timed.end_s > timed.start_s >= 0
