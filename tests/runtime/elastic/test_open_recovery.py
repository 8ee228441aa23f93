"""What a recovery took: from the fault on, whatever was under way by then."""

from __future__ import annotations

from heterps_runtime.elastic.open_recovery import OpenRecovery
from heterps_runtime.results.changes import Recovery

STATE = {"from_step": 3, "at_s": 16.0, "state_s": 1.0, "bytes_by_source": {}}


def ended(recovery: OpenRecovery) -> Recovery:
    recovery.handed_out_s, recovery.state = 14.0, STATE
    return recovery.ended(1, 17.0)


def test_a_loss_while_a_device_is_taken_in_counts_from_its_fault() -> None:
    recovery = OpenRecovery(noticed_s=10.0, last_step_s=9.5, steps_done=3)
    recovery.join("new")
    recovery.lose("old", 12.0, 12.5)
    found = ended(recovery)
    assert (found.detected_s, found.replanned_s, found.first_step_s) == (0.5, 1.5, 5.0)
    assert (found.lost, found.joined) == (("old",), ("new",))


def test_of_two_losses_the_first_counts() -> None:
    recovery = OpenRecovery(noticed_s=10.0, last_step_s=9.5, steps_done=3)
    recovery.lose("a", 9.75, 10.0)
    recovery.lose("b", 11.0, 11.25)
    found = ended(recovery)
    assert (found.detected_s, found.replanned_s, found.first_step_s) == (0.25, 4.0, 7.25)


def test_a_later_fault_says_nothing_of_a_first_loss_without_one() -> None:
    recovery = OpenRecovery(noticed_s=10.0, last_step_s=9.5, steps_done=3)
    recovery.lose("a", None, 10.0)
    recovery.lose("b", 11.0, 11.25)
    found = ended(recovery)
    assert (found.detected_s, found.first_step_s) == (None, 7.0)
