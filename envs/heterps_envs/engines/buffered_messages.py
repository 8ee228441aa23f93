"""Times a step whose messages wait for their receivers, but for what fits into buffers.

NCCL's send is a kernel in the order of the GPU's work: it copies the message piece by piece into a
ring of buffers, from which a thread of the host feeds the network. A message that fits is gone at
once, from the GPU's view, and travels while the GPU computes. A longer one keeps the sender until
its receiver is there and all but the last buffer is on its way. The receiver waits for all of it.

`heterps_envs.simulator.simulate` times other messages: with unbounded buffers, this is what it says
of emulated devices; what it says of processes is gloo's way, where a sender never waits for a
message and a receiver asks for the next ones beforehand.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence

from heterps_configs.documents.plan import Plan
from heterps_envs.problem import Problem
from heterps_envs.schedule.actions import Action
from heterps_envs.schedule.workload import Workload, workload


def passes_end_s(
    problem: Problem,
    plan: Plan,
    actions: Mapping[str, Sequence[Action]],
    buffer_bytes: Mapping[str, float],
    receive_s: Mapping[str, float],
) -> dict[str, float]:
    """When each device is done with its passes and messages.

    Args:
        problem: Where the seconds and bytes come from.
        plan: What runs.
        actions: Passes and messages of every device; messages of one direction between two devices
            are received in the order in which they are sent.
        buffer_bytes: By sending device, what it may put into buffers; missing: nothing.
        receive_s: By receiving device, its own seconds for a message that has arrived.

    Raises:
        PlanMismatchError: The plan belongs to another model, cluster or job.
    """
    run = _Run(problem, workload(problem, plan), actions, buffer_bytes, receive_s)
    return run.clock_s


class _Run:
    """Every device follows its list until it has to wait for another one."""

    def __init__(
        self,
        problem: Problem,
        work: Workload,
        actions: Mapping[str, Sequence[Action]],
        buffer_bytes: Mapping[str, float],
        receive_s: Mapping[str, float],
    ) -> None:
        self.problem, self.work, self.actions = problem, work, actions
        self.buffer_bytes, self.receive_s = buffer_bytes, receive_s
        self.position = dict.fromkeys(actions, 0)
        self.clock_s = dict.fromkeys(actions, 0.0)
        self.link_free_s: dict[tuple[str, str], float] = defaultdict(float)
        # (source, destination, direction) -> arrivals of buffered messages
        self.arrivals: dict[tuple[str, str, str], deque[float]] = defaultdict(deque)
        self.runnable = deque(actions)
        while self.runnable:
            self._follow(self.runnable.popleft())
        assert all(self.position[device] == len(entries) for device, entries in actions.items()), (
            "the action lists deadlock"
        )

    def _follow(self, device: str) -> None:
        entries = self.actions[device]
        while self.position[device] < len(entries):
            action = entries[self.position[device]]
            if action.kind == "send":
                if not self._send(device, action):
                    return
            elif action.kind == "receive":
                if not self._receive(device, action):
                    return
            else:
                assert action.kind == "forward" or action.kind == "backward"
                self.clock_s[device] += self.work.seconds(
                    action.kind, action.stage, action.micro_batch
                )
                self.position[device] += 1

    def _send(self, device: str, action: Action) -> bool:
        """False: the message does not fit, and its receiver is not there yet."""
        assert action.direction
        num_bytes = self.work.message_bytes(action.direction, action.stage, action.micro_batch)
        if num_bytes > self.buffer_bytes.get(device, 0.0):
            return self._meet(device, action, num_bytes)
        arrival_s = self._travel(device, action.peer, self.clock_s[device], num_bytes)
        self.arrivals[device, action.peer, action.direction].append(arrival_s)
        self.position[device] += 1
        self.runnable.append(action.peer)
        return True

    def _receive(self, device: str, action: Action) -> bool:
        """False: nothing was sent yet, or a long message, which is moved in its sender's turn."""
        queue = self.arrivals[action.peer, device, action.direction]
        if queue:
            self._arrive(device, queue.popleft())
            return True
        entries, position = self.actions[action.peer], self.position[action.peer]
        if position < len(entries) and entries[position].kind == "send":
            self.runnable.append(action.peer)
        return False

    def _meet(self, device: str, action: Action, num_bytes: float) -> bool:
        peer = action.peer
        entries, position = self.actions[peer], self.position[peer]
        if position == len(entries):
            return False
        there = entries[position]
        expected = ("receive", action.micro_batch, action.direction, device)
        if (there.kind, there.micro_batch, there.direction, there.peer) != expected:
            return False
        start_s = max(self.clock_s[device], self.clock_s[peer])
        arrival_s = self._travel(device, peer, start_s, num_bytes)
        link = self.problem.link(device, peer)
        left_s = self.buffer_bytes.get(device, 0.0) / link.bandwidth_bytes_per_s
        self.clock_s[device] = max(start_s, arrival_s - link.latency_s - left_s)
        self.position[device] += 1
        self._arrive(peer, arrival_s)
        self.runnable.append(peer)
        return True

    def _travel(self, source: str, destination: str, start_s: float, num_bytes: float) -> float:
        """Puts a message on its link, one at a time; returns when it arrives."""
        link = self.problem.link(source, destination)
        ends = (source, destination)
        self.link_free_s[ends] = (
            max(start_s, self.link_free_s[ends]) + num_bytes / link.bandwidth_bytes_per_s
        )
        return self.link_free_s[ends] + link.latency_s

    def _arrive(self, device: str, arrival_s: float) -> None:
        self.clock_s[device] = max(self.clock_s[device], arrival_s) + self.receive_s.get(device, 0)
        self.position[device] += 1
