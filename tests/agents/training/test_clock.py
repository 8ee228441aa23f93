"""Budgets end a run, and so does the user."""

import signal

import pytest

from heterps_agents.training.clock import Clock, Interrupt
from heterps_configs.documents.training import ChainTrainingConfig
from heterps_configs.interrupts import Terminated


def test_the_clock_counts_the_budget_that_ends_first() -> None:
    clock = Clock(ChainTrainingConfig(budget_s=1000.0, total_steps=100))
    clock.start(spent_s=100.0)
    assert clock.share == pytest.approx(0.1, abs=0.01)
    clock.steps = 50
    assert clock.share == 0.5
    assert clock.between(1.0, 0.0) == 0.5
    clock.steps = 200
    assert clock.is_over


def test_schedules_begin_when_imitation_ends() -> None:
    now_s = [0.0]
    clock = Clock(ChainTrainingConfig(budget_s=100.0), clock=lambda: now_s[0])
    now_s[0] = 60.0
    clock.start_schedule()
    assert clock.between(1.0, 0.0) == 1.0
    now_s[0] = 80.0
    assert clock.share == 0.8
    assert clock.between(1.0, 0.0) == pytest.approx(0.5)
    # A run that goes on knows when that was.
    clock.start(spent_s=90.0, schedule_start_s=clock.schedule_start_s)
    assert clock.between(1.0, 0.0) == pytest.approx(0.25)
    clock.start(spent_s=100.0, schedule_start_s=100.0)
    assert clock.between(1.0, 0.0) == 0.0


def test_ctrl_c_ends_a_run_after_its_update_and_a_second_one_at_once() -> None:
    interrupt, before = Interrupt(), signal.getsignal(signal.SIGINT)
    with interrupt.watched():
        signal.raise_signal(signal.SIGINT)
        assert type(interrupt.cause) is KeyboardInterrupt
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_sigterm_ends_a_run_after_its_update_however_often_it_comes() -> None:
    interrupt, before = Interrupt(), signal.getsignal(signal.SIGTERM)
    with interrupt.watched():
        for _ in range(2):
            signal.raise_signal(signal.SIGTERM)
        assert isinstance(interrupt.cause, Terminated)
    assert signal.getsignal(signal.SIGTERM) is before
