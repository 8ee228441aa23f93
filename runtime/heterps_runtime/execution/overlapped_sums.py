"""Gradient sums beside the passes: started where gradients are complete, waited for by the step.

A backward pass goes through its layers from the back, so the gradients of the last layers can be on
their way while those of the first ones are computed (Li et al., PyTorch Distributed, VLDB 2020).

Every rank starts its sums in the one global order of its action list, whatever is complete first,
and waits for none before it has started all. So no two ranks wait for one another: of all sums that
are not done, the first in the global order has been started, or will be, by all of its ranks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from torch import nn

from heterps_runtime.execution.emulation import Clock, Span
from heterps_runtime.execution.program import Key, Other, Pass, Step
from heterps_runtime.process.memory_ledger import MemoryLedger
from heterps_runtime.stages.owned_stages import OwnedStages
from heterps_runtime.transport.messenger import Messenger


class _Started(NamedTuple):
    number: int
    bucket: int
    ready_s: float


class OverlappedSums:
    """The sums of one device.

    Args:
        owned: What it trains.
        messenger: Carries them.
        program: Its action list.
        reduce_s: Seconds of a bucket's sum where links are emulated, else None.
    """

    def __init__(
        self,
        owned: OwnedStages,
        messenger: Messenger,
        program: Sequence[Step],
        reduce_s: Callable[[int], float] | None,
    ) -> None:
        self._owned, self._messenger, self._reduce_s = owned, messenger, reduce_s
        self._behind = _buckets_behind(program)
        self._started: list[_Started] = []

    @contextmanager
    def within(self, step: Pass) -> Iterator[None]:
        """A backward pass inside starts the sums that stand after it in the list."""
        buckets = self._behind.get(step.key, ())
        waiting, bucket_of = deque(buckets), self._buckets_of(buckets)
        missing = dict.fromkeys(buckets, 0)
        hooked = [
            parameter
            for parameter in step.module.parameters_by_name().values()
            if parameter.requires_grad and id(parameter) in bucket_of
        ]
        for parameter in hooked:
            missing[bucket_of[id(parameter)]] += 1

        def on_gradient(parameter: nn.Parameter) -> None:
            missing[bucket_of[id(parameter)]] -= 1
            while waiting and not missing[waiting[0]]:
                self._start(waiting.popleft())

        hooks = [
            parameter.register_post_accumulate_grad_hook(on_gradient)  # type: ignore[no-untyped-call]
            for parameter in hooked
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def has_sums_within(self, step: Pass) -> bool:
        """Whether sums stand after a backward pass."""
        return step.key in self._behind

    def start(self, step: Other, number: int, last_pass: Span) -> None:
        """Starts a sum, if the pass in front has not.

        Args:
            step: What stands in the list.
            number: Its number there.
            last_pass: When the pass in front ran.
        """
        self._start(step.action.bucket)
        taken_s = last_pass.end_s - last_pass.start_s
        ready_s = last_pass.start_s + step.action.ready_share * taken_s
        self._started.append(_Started(number, step.action.bucket, ready_s))

    def finish(self, clock: Clock) -> list[tuple[int, Span]]:
        """Waits for all that were started.

        Emulated sums follow each other on each device. All ranks ask for the same times in the same
        order.

        Returns:
            For each, its number in the list, and when it was on its way.
        """
        spans, free_s = [], 0.0
        for number, bucket, ready_s in self._started:
            start_s = ready_s
            if self._reduce_s is not None:
                ranks = self._owned.bucket_ranks(bucket)
                start_s = self._messenger.latest_s(max(ready_s, free_s), ranks)
                free_s = start_s + self._reduce_s(bucket)
            spans.append((number, Span(start_s, free_s)))
        self._started.clear()
        self._owned.finish_sums()
        if self._reduce_s is not None:
            clock.wait_until(free_s)
            return spans
        return [(number, Span(span.start_s, clock.now_s)) for number, span in spans]

    def _start(self, bucket: int) -> None:
        ledger = MemoryLedger.active
        if ledger is None:
            self._owned.start_sum(bucket, self._messenger)
            return
        with ledger.making("messages"):
            self._owned.start_sum(bucket, self._messenger)
        ledger.mark("gradients", (p.grad for p in self._owned.bucket_parameters(bucket)))

    def _buckets_of(self, buckets: Sequence[int]) -> dict[int, int]:
        """The bucket of each parameter, by the parameter's id."""
        return {
            id(parameter): bucket
            for bucket in buckets
            for parameter in self._owned.bucket_parameters(bucket)
        }


def _buckets_behind(program: Sequence[Step]) -> dict[Key, tuple[int, ...]]:
    """For each whole backward pass, the buckets whose sums stand right after it."""
    found: dict[Key, tuple[int, ...]] = {}
    at: Key | None = None
    for step in program:
        if isinstance(step, Pass):
            at = step.key if step.action.kind == "backward" else None
        elif isinstance(step, Other) and step.action.kind == "reduce" and at is not None:
            found[at] = (*found.get(at, ()), step.action.bucket)
    return found
