"""What is imported while a run goes on does not hold its end up."""

from __future__ import annotations

import os
import threading

import pytest

from heterps.reports.run_tensorboard import LOW_PRIORITY, hurry


@pytest.mark.skipif(
    os.name != "posix" or os.geteuid() != 0, reason="only root may raise a priority again"
)
def test_a_thread_that_somebody_waits_for_gets_the_priority_of_who_waits() -> None:
    is_low, is_over = threading.Event(), threading.Event()

    def work() -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOW_PRIORITY)
        is_low.set()
        is_over.wait(10)

    thread = threading.Thread(target=work)
    hurry(thread)  # one that has not begun is left alone
    thread.start()
    assert is_low.wait(10)
    try:
        assert thread.native_id is not None
        if os.getpriority(os.PRIO_PROCESS, thread.native_id) != LOW_PRIORITY:
            pytest.skip("threads have no priority of their own here")
        hurry(thread)
        own = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        assert os.getpriority(os.PRIO_PROCESS, thread.native_id) == own
    finally:
        is_over.set()
        thread.join()


@pytest.mark.skipif(os.name != "posix", reason="threads have no priority of their own here")
def test_where_that_is_not_allowed_the_thread_goes_on_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(which: int, who: int, priority: int) -> None:
        asked.append(who)
        raise PermissionError

    asked: list[int] = []
    is_over = threading.Event()
    thread = threading.Thread(target=is_over.wait, args=(10,))
    thread.start()
    monkeypatch.setattr(os, "setpriority", refuse)
    hurry(thread)
    is_over.set()
    thread.join()
    assert asked == [thread.native_id]
