"""What is imported while a run goes on does not hold its end up."""

from __future__ import annotations

import os
import threading

import pytest

from heterps.reports.run_tensorboard import LOW_PRIORITY, hurry


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="nobody else may do it")
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
