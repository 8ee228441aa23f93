"""Error rates of the drift monitor: alarms without a drift, and steps until a drift is told."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from benchmarks.agent.section import Row, TableRows
from benchmarks.online.section import SectionResult, Target
from benchmarks.shared.row_store import Settings
from heterps_envs.arrays import Floats
from heterps_envs.online.drift_monitor import DriftMonitor, Subject

TITLE = "Drift monitor: false alarms and delays"
TARGETS: list[Target] = []  # nobody asked for numbers; the summary has them

Noise = Callable[[np.random.Generator, int], Floats]

DEVICE = Subject("device", "device")
SLOWDOWNS = (1.1, 1.2, 1.5, 3.0)
# A drift begins after so many steps, and has so many to be told.
QUIET_STEPS, DRIFT_STEPS = 100, 300


def run(settings: Settings) -> SectionResult:
    """Measures every kind of noise."""
    num_runs, num_steps = (5, 400) if settings.quick else (60, 1000)
    rows: list[Row] = []
    for index, (name, noise) in enumerate(NOISES.items()):
        rng = np.random.default_rng([settings.seed, index])
        alarms = sum(len(_told(np.exp(noise(rng, num_steps)))) for _ in range(num_runs))
        row: Row = {"noise": name, "alarms_per_1000_steps": 1000 * alarms / num_runs / num_steps}
        for slowdown in SLOWDOWNS:
            delays = [_delay(noise, slowdown, rng) for _ in range(num_runs)]
            text = [f"{np.percentile(delays, q, method='higher'):.0f}" for q in (50, 95)]
            row[f"steps_to_{slowdown:g}x"] = " / ".join(
                "-" if float(part) > DRIFT_STEPS else part for part in text
            )
        rows.append(row)
    note = (
        f"{num_runs} runs of {num_steps} steps without drift; {num_runs} with a slowdown from step "
        f"{QUIET_STEPS} on: median / 95th percentile of the steps until it is told (-: later than "
        f"{DRIFT_STEPS} steps). Noise of one step's time, one number a step and device."
    )
    quiet = [row for row in rows if row["noise"] in ASKED]
    summary = {f"alarms: {row['noise']}": row["alarms_per_1000_steps"] for row in quiet}
    return SectionResult([TableRows("monitor", "Alarms and delays", note, rows)], summary)


def _told(ratios: Floats) -> list[int]:
    """Steps at which something was told."""
    monitor = DriftMonitor()
    return [
        event.step
        for step, ratio in enumerate(ratios)
        for event in monitor.take(step, {DEVICE: ratio})
    ]


def _delay(noise: Noise, slowdown: float, rng: np.random.Generator) -> float:
    """Steps from the beginning of a drift until it is told, the one it is told at included."""
    logarithms = noise(rng, QUIET_STEPS + DRIFT_STEPS)
    logarithms[QUIET_STEPS:] += np.log(slowdown)
    told = [step for step in _told(np.exp(logarithms)) if step >= QUIET_STEPS]
    return told[0] - QUIET_STEPS + 1 if told else DRIFT_STEPS + 1


def _normal(spread: float) -> Noise:
    return lambda rng, size: rng.normal(0, spread, size)


def _spiky(spread: float, share: float) -> Noise:
    """A share of the steps takes 1.5 to 10 times as long."""

    def draw(rng: np.random.Generator, size: int) -> Floats:
        values = rng.normal(0, spread, size)
        is_spike = rng.random(size) < share
        values[is_spike] += rng.uniform(np.log(1.5), np.log(10), is_spike.sum())
        return values

    return draw


def _heavy(scale: float) -> Noise:
    """Student's t with two degrees of freedom: no variance."""
    return lambda rng, size: rng.standard_t(2, size) * scale


def _wandering(spread: float, memory: float) -> Noise:
    """Each step resembles the one before it (autoregressive)."""

    def draw(rng: np.random.Generator, size: int) -> Floats:
        fresh = rng.normal(0, spread * np.sqrt(1 - memory**2), size)
        values = np.zeros(size)
        for i in range(1, size):
            values[i] = memory * values[i - 1] + fresh[i]
        return values

    return draw


NOISES: Mapping[str, Noise] = {
    "2 %": _normal(0.02),
    "5 %": _normal(0.05),
    "10 %": _normal(0.1),
    "20 %": _normal(0.2),
    "2 %, 1 step in 20 a spike": _spiky(0.02, 0.05),
    "5 %, 1 step in 10 a spike": _spiky(0.05, 0.1),
    "heavy-tailed, 3 %": _heavy(0.03),
    "heavy-tailed, 10 %": _heavy(0.1),
    "5 %, half of it from the step before": _wandering(0.05, 0.5),
    "wandering by 30 % (a crowded host)": _wandering(0.3, 0.95),
}
ASKED = ("2 %, 1 step in 20 a spike", "heavy-tailed, 3 %", "heavy-tailed, 10 %")
