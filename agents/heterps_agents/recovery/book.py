"""The book of recovery plans: plans for likely losses, made before anything is lost.

A process of its own fills it, at the lowest priority, so that no step waits for it. A change that
is found in it costs no planning. When the plan changes, the book begins anew.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import NamedTuple

from heterps_agents.interface.background import BackgroundWorker
from heterps_agents.recovery.losses import likely_losses
from heterps_agents.recovery.model import Prediction, Situation, at_step
from heterps_agents.recovery.pages import Page, Request
from heterps_configs.documents.plan import Plan
from heterps_envs.closed_form.fewer_devices import without_devices
from heterps_envs.problem import Problem

# Changes that are prepared; beyond, the book would be out of date before it was full.
MAX_PAGES = 1000
# Losses that a message names one by one.
MAX_NAMED = 4


class _Wanted(NamedTuple):
    """What the book is to be filled for."""

    number: int
    problem: Problem
    plan: Plan
    alive: frozenset[str]


class RecoveryBook(AbstractContextManager["RecoveryBook", None]):
    """Plans for changes of the devices, made in the background.

    Used as a context manager: the process that fills it ends with it.

    Args:
        tolerated: Devices whose loss at one time is prepared for, beside that of whole nodes.
        rates: Losses in an hour by names of devices or of types, where they are known.
        seed: Of planners.
        on_message: Receives one line when the book is full: what can be lost, and what cannot.
    """

    def __init__(
        self,
        *,
        tolerated: int = 1,
        rates: Mapping[str, float] | None = None,
        seed: int = 0,
        on_message: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.tolerated, self.rates, self.seed = tolerated, dict(rates or {}), seed
        self._on_message = on_message
        self._lock = threading.Lock()
        self._is_full = threading.Event()
        self._pages: dict[frozenset[str], Page] = {}
        self._request: Request | None = None
        self._alive: frozenset[str] = frozenset()
        self._number = 0
        self._worker: BackgroundWorker | None = None

    def __exit__(self, *raised: object) -> None:
        self.close()

    def begin(self, problem: Problem, plan: Plan, alive: frozenset[str] | None = None) -> None:
        """Forgets what it has and prepares for changes of another plan, or other devices.

        Args:
            problem: With all devices that ever were.
            plan: What runs.
            alive: Devices that there are; by default all.
        """
        there = frozenset(problem.device_named) if alive is None else alive
        if self._worker is None:
            self._worker = BackgroundWorker("heterps_agents.recovery.worker", self._take)
        with self._lock:
            self._number += 1
            self._alive, self._request, self._pages = there, None, {}
            self._is_full.clear()
        wanted = _Wanted(self._number, problem, plan, there)
        self._worker.ask(lambda: self._request_for(wanted))

    def find(self, situation: Situation, alive: frozenset[str]) -> list[Prediction] | None:
        """Predictions for a change; None where the book has no page for it.

        Args:
            situation: How far the run is; it must be of the plan that the book was begun with.
            alive: Devices that there are now.
        """
        with self._lock:
            request, page = self._request, self._pages.get(alive)
        is_other = request is None or not request.plan.runs_like(situation.plan)
        if page is None or is_other or not page.predictions:
            return None
        return [at_step(each, situation) for each in page.predictions]

    def wait(self, seconds: float) -> bool:
        """Waits until the book is full; whether it is."""
        return self._is_full.wait(seconds)

    def close(self) -> None:
        """Ends the process that fills the book."""
        if self._worker is not None:
            self._worker.end()
            self._worker = None

    def _changes(self, problem: Problem, alive: frozenset[str]) -> tuple[frozenset[str], ...]:
        """What there may be next: fewer devices by a likely loss, or one more that comes back."""
        gone = sorted(set(problem.device_named) - alive)
        losses = likely_losses(without_devices(problem, gone), self.tolerated, self.rates)
        back = [alive | {name} for name in gone]
        fewer = [alive - loss.devices for loss in losses]
        return tuple(dict.fromkeys([*fewer[: len(alive)], *back, *fewer]))[:MAX_PAGES]

    def _request_for(self, wanted: _Wanted) -> Request | None:
        """What is sent for it; None where something else is wanted by now."""
        changes = self._changes(wanted.problem, wanted.alive)
        # A copy, because what a problem has computed need not be sent along.
        request = Request(wanted.number, replace(wanted.problem), wanted.plan, changes, self.seed)
        with self._lock:
            if wanted.number != self._number:
                return None
            self._request = request
        return request

    def _take(self, page: Page) -> None:
        with self._lock:
            request = self._request
            if request is None or page.number != request.number:
                return
            self._pages[page.alive] = page
            is_full = len(self._pages) == len(request.changes)
        # Pages that more effort made better come later.
        if is_full and not self._is_full.is_set():
            self._on_message(self.summary())
            self._is_full.set()

    def summary(self) -> str:
        """Which losses can be tolerated, and why others cannot: one line."""
        with self._lock:
            losses = [page for alive, page in self._pages.items() if alive < self._alive]
        hopeless = [page for page in losses if not page.predictions]
        text = f"recovery plans are ready for {len(losses) - len(hopeless)} of {len(losses)} losses"
        if not hopeless:
            return text
        named = "; ".join(page.reason for page in hopeless[:MAX_NAMED])
        more = f"; and {len(hopeless) - MAX_NAMED} more" if len(hopeless) > MAX_NAMED else ""
        return f"{text}; these cannot be tolerated: {named}{more}"
