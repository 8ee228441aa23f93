"""A slow event simulator of graph placements: queues, and a heap of what ends when."""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict, deque
from collections.abc import Callable, Sequence

from heterps_envs.graphs.problem import GraphTables

Task = tuple[str, int]  # ("forward" or "backward", node)
Message = tuple[str, int, int, int]  # ("forward" or "backward", producer, source, destination)


class EventSimulator:
    """Runs one step event by event: nothing is known before it happens."""

    def __init__(self, tables: GraphTables, devices: Sequence[int]) -> None:
        self.tables, self.devices = tables, [int(device) for device in devices]
        start, producers = tables.producer_start, tables.producers
        self.reads = [
            [int(q) for q in producers[start[v] : start[v + 1]]] for v in range(tables.num_nodes)
        ]
        self.readers: dict[int, list[int]] = defaultdict(list)
        for node, reads in enumerate(self.reads):
            for producer in reads:
                self.readers[producer].append(node)
        self.now, self.finish_s = 0.0, dict[Task, float]()
        self.start_s = dict[Task, float]()
        self._order, self._events = itertools.count(), list[tuple[float, int, Callable[[], None]]]()
        self.arrived: set[Message] = set()
        self.tasks: dict[int, deque[Task]] = defaultdict(deque)
        self.messages: dict[int, deque[Message]] = defaultdict(deque)
        self.busy_devices: set[int] = set()
        self.busy_channels: set[int] = set()
        self._queue_everything()

    def run(self) -> float:
        """Seconds until the last task is done."""
        self._begin_what_can()
        while self._events:
            self.now, _, happens = heapq.heappop(self._events)
            happens()
            self._begin_what_can()
        assert not any(self.tasks.values())
        assert not any(self.messages.values())
        return max(self.finish_s.values())

    def _queue_everything(self) -> None:
        nodes, copies = range(len(self.devices)), list[tuple[int, int, int]]()
        for node in nodes:
            self.tasks[self.devices[node]].append(("forward", node))
            for producer in self.reads[node]:
                ends = (self.devices[producer], self.devices[node])
                if ends[0] != ends[1] and (producer, *ends) not in copies:
                    copies.append((producer, *ends))
                    channel = int(self.tables.channel[ends])
                    self.messages[channel].append(("forward", producer, *ends))
        if not self.tables.has_backward:
            return
        for node in reversed(nodes):
            self.tasks[self.devices[node]].append(("backward", node))
        # What was copied first is summed last: the same transfers, mirrored.
        for producer, source, destination in reversed(copies):
            channel = int(self.tables.channel[destination, source])
            self.messages[channel].append(("backward", producer, destination, source))

    def _begin_what_can(self) -> None:
        for device, tasks in self.tasks.items():
            if tasks and device not in self.busy_devices and self._is_ready(tasks[0]):
                self._begin_task(device, tasks.popleft())
        for channel, messages in self.messages.items():
            if messages and channel not in self.busy_channels and self._can_send(messages[0]):
                self._begin_message(channel, messages.popleft())

    def _is_ready(self, task: Task) -> bool:
        direction, node = task
        device = self.devices[node]
        if direction == "forward":
            return all(
                ("forward", q) in self.finish_s
                if self.devices[q] == device
                else ("forward", q, self.devices[q], device) in self.arrived
                for q in self.reads[node]
            )
        return ("forward", node) in self.finish_s and all(
            ("backward", reader) in self.finish_s
            if self.devices[reader] == device
            else ("backward", node, self.devices[reader], device) in self.arrived
            for reader in self.readers[node]
        )

    def _can_send(self, message: Message) -> bool:
        direction, producer, source, _ = message
        if direction == "forward":
            return ("forward", producer) in self.finish_s
        return all(
            ("backward", reader) in self.finish_s
            for reader in self.readers[producer]
            if self.devices[reader] == source
        )

    def _begin_task(self, device: int, task: Task) -> None:
        direction, node = task
        seconds = getattr(self.tables, f"{direction}_s")[node, device]
        self.busy_devices.add(device)
        self.start_s[task] = self.now

        def end() -> None:
            self.busy_devices.discard(device)
            self.finish_s[task] = self.now

        self._at(self.now + seconds, end)

    def _begin_message(self, channel: int, message: Message) -> None:
        direction, producer, source, destination = message
        tables = self.tables
        sizes = tables.output_bytes if direction == "forward" else tables.gradient_bytes
        busy_s = sizes[producer] * tables.inverse_bandwidth_s_per_byte[source, destination]
        self.busy_channels.add(channel)
        self._at(self.now + busy_s, lambda: self.busy_channels.discard(channel))
        latency_s = tables.latency_s[source, destination]
        self._at(self.now + busy_s + latency_s, lambda: self.arrived.add(message))

    def _at(self, when_s: float, happens: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when_s, next(self._order), happens))
