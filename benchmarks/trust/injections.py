"""Processes of elastic runs are killed and stopped while the run recovers.

    python benchmarks/trust/injections.py --count 500 --load 6
    python benchmarks/trust/injections.py --quick --json injections.json

Every case is a run on four emulated devices that loses one of them, and then more, each at a drawn
time, 0 to 3 s after a new generation begins: survivors, newcomers, the last holder of a stage's
layers, several one after the other; killed, or stopped. Expected of each: it ends, every step has
the loss of the uninterrupted run, the last checkpoint its parameters, no process and no socket is
left, and all listened on the loopback alone. `first new step`: from a fault to the next step, where
no other fault comes between. With `--load N`, N processes compute beside it all.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.online.recovery.injection_cases import DEVICES, LONG_STEPS, Action, Case
from benchmarks.online.recovery.injection_verdict import FAILURES, case_row
from benchmarks.shared.common import Row, report

COUNT, QUICK_COUNT = 500, 8
# After a generation begins, in equal parts: it trains, state moves, ranks connect.
DELAYS_S = (3.0, 0.5, 0.1)
# What a slower case leaves is kept.
SLOW_S = 5.0
KINDS = (
    "a survivor is killed",
    "the newcomer is killed",
    "a survivor is killed as a newcomer comes",
    "the last holder of layers is killed",
    "three are killed in a row",
    "a survivor is stopped",
    "a survivor is stopped for a while",
    "the newcomer is stopped",
)
# Plans with replicas, and two devices that hold the same layers.
_REPLICAS = {
    "two pipelines": (("d0", "d2"), ("d1", "d3")),
    "a shared stage and replicas": (("d1", "d2"), ("d2", "d3")),
}
_PLANS = ("chain of four", "chain of three, one idle", *_REPLICAS)


def injection_rows(
    count: int, seed: int = 0, load: int = 0, keep: Path | None = None
) -> list[dict[str, Any]]:
    """One row for each kind of case.

    Args:
        count: Cases of all kinds together.
        seed: Of the first case; the others follow.
        load: Processes that compute beside them.
        keep: Where failed and slow cases leave all that they have.
    """
    cases = []
    with loaded(load):
        for number in range(seed, seed + count):
            case = draw(number)
            began_s = time.monotonic()
            folder = None if keep is None else keep / str(number)
            row = case_row(case, folder)
            cases.append(row)
            pause_s = max(row["pauses"], default=0.0)
            print(
                f"{number} {case.kind}: {row['failure'] or 'passed'}, first new step "
                f"{row['first_step_s']:.1f} s, pause {pause_s:.1f} s, "
                f"{time.monotonic() - began_s:.0f} s in all {row['detail']}",
                file=sys.stderr,
                flush=True,
            )
            if folder is not None and not row["failure"] and pause_s < SLOW_S:
                shutil.rmtree(folder)
    return [_shown(kind, own) for kind in KINDS if (own := [r for r in cases if r["kind"] == kind])]


def draw(seed: int) -> Case:
    """The case of a seed; kinds take turns."""
    rng = random.Random(f"injection {seed}")
    kind = KINDS[seed % len(KINDS)]
    plan = rng.choice(_PLANS)
    first, second, third = rng.sample(DEVICES, 3)
    step = rng.randint(1, 10)
    joins: tuple[tuple[str, int], ...] = ()
    if kind == "the last holder of layers is killed":
        plan = rng.choice(list(_REPLICAS))
        first, second = rng.sample(rng.choice(_REPLICAS[plan]), 2)
    if "newcomer" in kind:
        joins = ((first, step + rng.randint(1, 8)),)
    act = "stop" if "stopped" in kind else "kill"
    victim = first if kind.startswith("the newcomer") else second
    actions = [
        Action(act="kill", step=step, delay_s=rng.uniform(0, 0.06), device=first),
        Action(act=act, generation=2 if joins else 1, delay_s=_delay_s(rng), device=victim),
    ]
    if kind == "three are killed in a row":
        actions += [Action(act="kill", generation=2, delay_s=_delay_s(rng), device=third)]
    if kind == "a survivor is stopped for a while":
        actions += [Action(act="continue", delay_s=rng.uniform(0.2, 4.0), device=victim)]
    return Case(
        kind=kind,
        seed=seed,
        plan=plan,
        steps=LONG_STEPS,
        actions=tuple(actions),
        joins=joins,
        has_controller=rng.random() < 0.3,
    )


def _delay_s(rng: random.Random) -> float:
    return rng.uniform(0, rng.choice(DELAYS_S))


@contextlib.contextmanager
def loaded(number: int) -> Iterator[None]:
    """So many processes compute meanwhile."""
    busy = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(number)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


# Ends with the process that started it.
_BUSY = """
import os
parent = os.getppid()
while os.getppid() == parent:
    sum(range(1_000_000))
"""


def _shown(kind: str, rows: Sequence[Row]) -> dict[str, Any]:
    failures = [row["failure"] for row in rows if row["failure"]]
    return {
        "kind": kind,
        "runs": len(rows),
        "passed": len(rows) - len(failures),
        "recoveries": sum(len(row["pauses"]) for row in rows),
        "first new step s, slowest": max(row["first_step_s"] for row in rows),
        "pause s, longest": max((p for row in rows for p in row["pauses"]), default=0.0),
        "loss difference": max(row["loss_difference"] for row in rows),
        "listening sockets": sum(row["listeners"] for row in rows),
        "failures": "; ".join(sorted(set(failures))),
    }


def main() -> None:
    """Runs the cases and prints their table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=COUNT, help="cases")
    parser.add_argument("--seed", type=int, default=0, help="of the first case")
    parser.add_argument("--load", type=int, default=0, help="processes that compute meanwhile")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_COUNT} cases")
    parser.add_argument("--json", type=Path, help="write rows and summary to this file")
    parser.add_argument("--keep", type=Path, help="cases leave all that they have here")
    options = parser.parse_args()
    count = QUICK_COUNT if options.quick else options.count
    keep = options.keep and options.keep.resolve()
    rows = injection_rows(count, options.seed, options.load, keep)
    report("injections in recovery", rows, summary_of(rows), options)


def summary_of(rows: Sequence[Row]) -> dict[str, Any]:
    """Of all kinds together."""
    return {
        "injections": sum(row["runs"] for row in rows),
        "failed": sum(row["runs"] - row["passed"] for row in rows),
        "slowest_first_new_step_s": max(row["first new step s, slowest"] for row in rows),
        "longest_pause_s": max(row["pause s, longest"] for row in rows),
        "max_loss_difference": max(row["loss difference"] for row in rows),
        **{name: sum(name in row["failures"] for row in rows) for name in FAILURES},
    }


if __name__ == "__main__":
    main()
