"""Real training under a plan: what disturbs it changes no result, loses no sample, costs no time.

    python benchmarks/runtime/real.py
    python benchmarks/runtime/real.py --quick --json real.json

`final loss`: the shipped program `text_llama`, without its evaluations, on four emulated devices.
One of them is lost, one gets slow and layers move off it as it is measured, and the run is ended
and resumed under another plan; against one process that nothing happens to. `samples`: runs that
are broken off at random steps, without a word to their ranks, and go on from their newest
checkpoint under another plan; how often each sample of an epoch was trained on. `loader`: steps
that read a text beside steps on a batch in memory, in blocks that take turns. `workers`: the same
with samples that come from far away, read by a thread and by processes.
"""

from __future__ import annotations

import json
import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.runtime import real_program
from benchmarks.shared.common import interleaved_medians, parse_options, report
from heterps_configs.documents.plan import Plan
from heterps_configs.documents.run_events import RunEvent
from heterps_configs.documents.run_settings import (
    CheckpointSettings,
    OnlineSettings,
    RunSettings,
)
from heterps_configs.library import load_profile
from heterps_envs.online.correction import drift
from heterps_envs.problem import Problem
from heterps_envs.schedule.build import build_schedule
from heterps_runtime.elastic.run_elastic import run_elastic
from heterps_runtime.examples import text_llama
from heterps_runtime.execution.data_feed import DataFeed
from heterps_runtime.models.build import build_module
from heterps_runtime.own_loop.steps import trained
from heterps_runtime.own_loop.trainer import PipelineTrainer
from heterps_runtime.results.measurements import Measurements
from heterps_runtime.results.progress import StepProgress
from heterps_runtime.run.hooks import PlanUpdate, RunHooks
from heterps_runtime.run.run_plan import run_plan
from heterps_runtime.run.verify import reference_losses
from heterps_runtime.specification.build import build_specification
from heterps_runtime.training.program import TrainingProgram
from heterps_runtime.training.program_file import ProgramFile
from tests.runtime.elastic.small_runs import Chains
from tests.runtime.small_runs import DEVICES, chain_of, on_four_devices, plan_of, problem_of

TEXT_PROGRAM = f"{real_program.__file__}:make_text"
BATCH, MICRO_BATCH = 4, 1
# What a micro-batch takes on an emulated device that has the whole model; the host needs less.
STEP_S = 0.12
BLOCK = 5
# Of samples from far away: what each of them takes, and how many processes read them.
WAIT_S, NUM_WORKERS = 0.15, 8


def main() -> None:
    """Runs the benchmark and prints its table."""
    options = parse_options(__doc__ or "", only="loss, samples, loader or workers; by default all")
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "loss": lambda: disturbed(30 if options.quick else 300),
        "samples": lambda: interrupted(3 if options.quick else 50, options.seed),
        "loader": lambda: loader(6 if options.quick else 40),
        "workers": lambda: far_away(3 if options.quick else 11),
    }
    rows = [part() for name, part in parts.items() if options.only in (None, name)]
    report("real", rows, {row["what"]: row["found"] for row in rows}, options)


class _Cuts(Chains):
    """Chains of equal numbers of layers, over all devices that are alive."""

    def plan_for(self, devices: Any) -> Plan:
        layers = self._problem.profile.num_layers
        cuts = [layers * index // len(devices) for index in range(1, len(devices))]
        return chain_of(self._problem, *cuts, devices=devices)


def disturbed(steps: int) -> dict[str, Any]:
    """A loss, a drift and a resume, against one process."""
    problem = on_four_devices(
        load_profile("llama-tiny"), slowdowns=(1.0,) * 4, step_s=STEP_S,
        global_batch_size=BATCH, micro_batch_size=MICRO_BATCH,
    )  # fmt: skip
    replanner = _Cuts(problem)
    moves: list[int] = []

    def controller(measurements: Measurements) -> PlanUpdate | None:
        if measurements.step < steps // 5:
            return None  # warm-up and recovery
        slow = drift(problem, measurements.stage_measurements()).get("d2", 1.0)
        if slow < 1.5 or moves:
            return None
        moves.append(measurements.step)
        plan = chain_of(problem, 6, 8, devices=("d0", "d2", "d3"))
        return PlanUpdate(plan, problem, measurements.step + 2, "layers move off d2")

    with tempfile.TemporaryDirectory() as folder:
        saving = CheckpointSettings(folder=folder, every=10)
        settings = RunSettings(
            steps=steps // 2, program=TEXT_PROGRAM, checkpoint=saving,
            online=OnlineSettings(measure_every=5),
        )  # fmt: skip
        events = [
            RunEvent(step=steps // 10, lose="d1"),
            RunEvent(step=steps // 5, slow="d2", factor=2.0),
        ]
        first = run_elastic(
            problem, replanner.plan_for(DEVICES), settings, replanner, events=events,
            hooks=RunHooks(controller=controller, on_message=print), trust_code=True,
        )  # fmt: skip
        later = settings.changed(steps=steps, resume=True)
        second = run_plan(
            problem, chain_of(problem, 8, devices=("d3", "d0")), later, trust_code=True
        )
    found = [*first.losses, *second.losses]
    expected = _undisturbed(problem, steps)
    return {
        "what": "final loss, difference to one process",
        "found": abs(found[-1] - expected[-1]),
        "at_most": 1e-4,
        "of": f"{steps} steps, loss {found[0]:.4f} -> {found[-1]:.4f}, lost {len(first.recoveries)}"
        f" times, moved at {moves}; worst step {_worst(found, expected):.1e}",
    }


def _worst(found: list[float], expected: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(found, expected, strict=True))


def _undisturbed(problem: Problem, steps: int) -> list[float]:
    plan = chain_of(problem, devices=DEVICES[:1])
    specification = build_specification(
        problem, plan, build_schedule(problem, plan), RunSettings(steps=steps), devices=plan.devices
    )
    program = ProgramFile.of(TEXT_PROGRAM)
    program.agree()
    return reference_losses(specification.changed(emulation=None, program=program))


class _BrokenOff(Exception):
    """Ends a run in the middle."""


def interrupted(times: int, seed: int) -> dict[str, Any]:
    """Breaks runs off, and counts what was trained on."""
    problem, draw = problem_of("sequential"), random.Random(seed)
    steps = 2 * -(-real_program.NUM_SAMPLES // problem.job.global_batch_size)
    plans = [
        chain_of(problem, 4),
        plan_of(
            problem,
            {"a": (0, 2, "d0"), "b": (3, -1, "d1"), "c": (3, -1, "d2")},
            {("a", "b"): (0, 3), ("a", "c"): (1, 2)},
        ),
    ]
    with tempfile.TemporaryDirectory() as temporary:
        seen = os.environ["SEEN"] = f"{temporary}/seen"
        Path(seen).mkdir()
        settings = RunSettings(
            steps=steps, program=f"{real_program.__file__}:make",
            checkpoint=CheckpointSettings(folder=f"{temporary}/saved", every=2),
        )  # fmt: skip
        stops = sorted(draw.randrange(3, steps - 1) for _ in range(times))
        for number, stop in enumerate([*stops, None]):
            os.environ["ATTEMPT"] = str(number)
            known = any(Path(settings.checkpoint.folder).glob("step-*"))
            try:
                run_plan(
                    problem, plans[number % 2], settings.changed(resume=known),
                    hooks=RunHooks(on_progress=_stopping(stop), on_message=lambda text: None),
                    trust_code=True,
                )  # fmt: skip
            except _BrokenOff:
                continue
        counts = _counts(Path(seen), steps // 2)
    expected = 2 * real_program.NUM_SAMPLES
    return {
        "what": "samples trained on over samples of two epochs",
        "found": sum(counts.values()) / expected,
        "at_most": 1.0,
        "of": f"{times} interruptions, {len(counts)} of {expected} samples, the most often "
        f"{max(counts.values())} x",
    }


def _counts(folder: Path, steps_per_epoch: int) -> Counter[tuple[int, int]]:
    """How often each sample of each epoch was trained on in the steps that count."""
    attempts: dict[int, dict[int, list[int]]] = {}
    for path in folder.glob("*.json"):
        step, attempt, _ = map(int, path.stem.split("-"))
        attempts.setdefault(step, {}).setdefault(attempt, []).extend(json.loads(path.read_text()))
    return Counter(
        ((step - 1) // steps_per_epoch, number)
        for step, found in attempts.items()
        for number in found[max(found)]
    )


def _stopping(stop: int | None) -> Any:
    def on_progress(progress: StepProgress) -> None:
        if stop is not None and progress.step >= stop:
            raise _BrokenOff

    return on_progress


def loader(repeats: int) -> dict[str, Any]:
    """Steps of one process that reads a text, over steps on one batch in memory."""
    medians = _steps({"read": text_llama.make()}, repeats)
    return {
        "what": "a step that reads its data, over one in memory",
        "found": medians["read"] / medians["in memory"],
        "at_most": 1.02,
        "of": f"medians of {repeats} blocks, {medians['in memory'] / BLOCK * 1e3:.1f} ms a step",
    }


def far_away(repeats: int) -> dict[str, Any]:
    """The same where the samples of a batch take longer than a step."""
    program = text_llama.make()
    slow = replace(program, data=_FarAway(program.data))
    medians = _steps({"thread": slow, "processes": replace(slow, num_workers=NUM_WORKERS)}, repeats)
    memory_s = medians["in memory"]
    return {
        "what": f"a step whose samples wait {WAIT_S * 1e3:.0f} ms each, {NUM_WORKERS} processes "
        "read, over one in memory",
        "found": medians["processes"] / memory_s,
        "by_a_thread": medians["thread"] / memory_s,
        "of": f"medians of {repeats} blocks, {memory_s / BLOCK * 1e3:.1f} ms a step",
    }


class _FarAway:
    """Samples that come by a slow network."""

    def __init__(self, data: Any) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> Any:
        time.sleep(WAIT_S)
        return self._data[index]


def _steps(programs: dict[str, TrainingProgram], repeats: int) -> dict[str, float]:
    """Median seconds of a block of steps that read as each program says, and of one in memory."""
    # As ranks have it; and two threads of one operation wait for each other on a busy host.
    torch.set_num_threads(1)
    problem = on_four_devices(
        load_profile("llama-tiny"), global_batch_size=BATCH, micro_batch_size=MICRO_BATCH
    )
    source = problem.profile.source
    assert source is not None
    data = text_llama.make().data
    trainer = PipelineTrainer(
        lambda: build_module(source),
        chain_of(problem, devices=DEVICES[:1]).changed(model_fingerprint=""),
        replace(
            text_llama.make(),
            loss=lambda output, target: nn.functional.cross_entropy(
                output.flatten(0, 1), target.flatten()
            ),
        ),
    )
    windows = [data[index] for index in range(BATCH)]
    inputs = {"input_ids": torch.stack([window["input_ids"] for window in windows])}
    target = torch.stack([window["labels"] for window in windows])
    trainer.step(inputs, target)
    parts = trainer._parts
    built = parts.built
    assert built is not None
    executor = built.executor
    specification = built.specification.changed(num_steps=10**6)
    device = torch.device("cpu")
    feeds = {
        name: DataFeed.of_training(program, specification, executor, device)
        for name, program in programs.items()
    }
    done = dict.fromkeys(programs, 0)

    def in_memory() -> None:
        for _ in range(BLOCK):
            trainer.step(inputs, target)

    def reading(name: str) -> Callable[[], None]:
        def read() -> None:
            for _ in range(BLOCK):
                trained(parts, feeds[name].of_step(done[name]))
                done[name] += 1

        return read

    blocks = {"in memory": in_memory, **{name: reading(name) for name in programs}}
    medians = interleaved_medians(blocks, repeats)
    for feed in feeds.values():
        feed.close()
    return medians


if __name__ == "__main__":
    main()
