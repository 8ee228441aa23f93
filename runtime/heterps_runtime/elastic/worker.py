"""One process of an elastic run: takes part in one generation after the other.

A process outlives the generations that it takes part in: where another rank is lost, it drops the
connections, keeps its tensors, and meets the others again in the next generation. It ends when the
supervisor says so or has gone, or by an error of its own. JSON lines for the supervisor go to
standard output, all else into the log `rank-NUMBER.log`.
"""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, TextIO

import torch
import torch.distributed as dist

from heterps_configs.errors import HeterpsError
from heterps_runtime.elastic.holding import Holding
from heterps_runtime.elastic.store import (
    Notice,
    connect,
    generation_store,
    meet,
    wait_for_notice,
)
from heterps_runtime.elastic.trainer import MESSAGES, ElasticTrainer
from heterps_runtime.elastic.watch import Watch
from heterps_runtime.fleet.worker_settings import WorkerSettings
from heterps_runtime.models.build import build_module
from heterps_runtime.models.recordings import recorded
from heterps_runtime.process.allocator import keep_freed_memory
from heterps_runtime.process.rank_log import print_into_log
from heterps_runtime.process.without_compiler import keep_compiler_out
from heterps_runtime.run.worker import report_error, watch_parents
from heterps_runtime.specification.devices import available_device
from heterps_runtime.specification.run import SPECIFICATION_FILE, RunSpecification
from heterps_runtime.specification.trust import trust_specification
from heterps_runtime.state.checkpoint_tiers import CheckpointTiers
from heterps_runtime.training.prepared import source_under
from heterps_runtime.training.program_file import training_program
from heterps_runtime.transport.communication import Communicator, count_groups_anew
from heterps_runtime.transport.lost_ranks import LostRankError, forget_frames, talking
from heterps_runtime.transport.typed_messages import expect

logger = logging.getLogger(__name__)


class ElasticWorker:
    """The process of one device.

    Args:
        directory: Run directory.
        settings: What it was told.
        out: Where JSON lines for the supervisor go.
    """

    def __init__(self, directory: Path, settings: WorkerSettings, out: TextIO) -> None:
        self._directory, self._settings, self._out = directory, settings, out
        self._device = settings.device
        self._lock = threading.Lock()
        self._trainer: ElasticTrainer | None = None
        self._generation, self._phase = -1, "waiting"
        self._holding = Holding()
        specification = RunSpecification.from_json_file(directory / SPECIFICATION_FILE)
        trust_specification(specification)
        self._first = specification
        self._tiers = CheckpointTiers(specification.checkpoint, specification.resume_from)
        torch.set_num_threads(specification.num_threads)
        self._torch_device = available_device(settings.torch_device)
        _warm_up(specification, settings.is_standby)

    def run(self) -> None:
        """Takes part until the supervisor ends the run."""
        settings = self._settings
        store = connect(settings.port)
        watch = Watch(settings.port, self._device, self._progress, settings.leave_s)
        self._tell({"ready": os.getpid()})
        number = settings.generation
        while True:
            notice = wait_for_notice(store, number, self._remark, self._check)
            number = notice.number
            if notice.specification is None:
                break
            if self._device in notice.specification.devices:
                # Another host may have another path to the same file.
                specification = notice.specification.changed(program=self._first.program)
                self._take_part(notice, specification, watch)
        for remark in self._tiers.close():
            self._tell({"message": remark})

    def _check(self, notice: Notice) -> None:
        """Compares a notice with what the launcher has said: code and files never change.

        Raises:
            HeterpsError: It names others.
        """
        first, found = self._first, notice.specification
        if found is not None and (
            found.profile.source != first.profile.source
            or found.checkpoint != first.checkpoint
            or found.weights != first.weights
            or _fingerprint(found) != _fingerprint(first)
        ):
            raise HeterpsError("it names another model, or other files, than the run began with")

    def _remark(self, text: str) -> None:
        logger.warning("%s", text)
        self._tell({"message": f"{self._device}: {text}"})

    def _take_part(self, notice: Notice, specification: RunSpecification, watch: Watch) -> None:
        """One generation."""
        watch.enter(notice.number, notice.connect_s)
        self._generation = notice.number
        lost: str | None = None
        is_done = False
        try:
            is_done = self._train(notice, specification, watch)
        except LostRankError as error:
            lost = str(error).strip().partition("\n")[0]
            forget_frames(error)
        self._phase = "leaving"
        if lost is not None:
            watch.cut()
        trainer, self._trainer = self._trainer, None
        is_connected = dist.is_initialized()
        _let_go()
        if lost is not None:
            logger.info("generation %d is broken: %s", notice.number, lost)
            if trainer is not None:
                trainer.abandon()
        self._tell({"left": notice.number, "is_done": is_done, "lost": lost})
        del trainer
        gc.collect()
        watch.leave()
        if not is_connected:
            count_groups_anew()
        self._phase = "waiting"

    def _train(self, notice: Notice, specification: RunSpecification, watch: Watch) -> bool:
        store = connect(self._settings.port)
        self._phase = "meeting"
        meet(store, notice, self._device)
        self._phase, limit = "connecting", timedelta(seconds=notice.connect_s)
        with talking():
            dist.init_process_group(
                "gloo",
                store=generation_store(store, notice.number),
                rank=specification.ranks[self._device],
                world_size=len(specification.devices),
                timeout=limit,
            )
        communicator = Communicator(self._torch_device, has_nccl=False, connect_timeout=limit)
        rank, size = communicator.rank, communicator.world_size
        logger.info("generation %d: rank %d of %d", notice.number, rank, size)
        self._trainer = ElasticTrainer(
            specification,
            self._directory,
            communicator,
            self._tell,
            holding=self._holding,
            tiers=self._tiers,
            is_ending=lambda: watch.is_ending,
        )
        is_done = self._trainer.train()
        communicator.barrier()
        return is_done

    def _progress(self) -> str:
        """The generation, what it does in it, and counts of what is done."""
        trainer = self._trainer
        done = f"{self._phase} -" if trainer is None else trainer.progress
        return f"{self._generation} {done}"

    def _tell(self, line: dict[str, Any]) -> None:
        with self._lock:
            print(json.dumps({**line, "sent_s": time.monotonic()}), file=self._out, flush=True)


def main(arguments: list[str]) -> int:
    """Plays the part of one device.

    Returns:
        The exit code; where it is 1, `error-NUMBER.json` says why.
    """
    directory, settings = Path(arguments[0]), WorkerSettings.model_validate_json(arguments[1])
    watch_parents()
    try:
        keep_freed_memory()
        keep_compiler_out()
        out = print_into_log(directory, settings.number, settings.device)
        logger.info("process %d", os.getpid())
        ElasticWorker(directory, settings, out).run()
    except BaseException as error:
        report_error(directory, str(settings.number), settings.device, error)
        return 1
    logger.info("the run has ended")
    return 0


def _warm_up(specification: RunSpecification, is_standby: bool) -> None:
    """Imports and prepares what generations need, so that nobody waits for it in a recovery.

    The ranks of a run's first generation share one recording of the model; a standby makes its own.
    """
    job, planned = specification.plan.job, specification.profile.source
    assert planned is not None
    source = source_under(training_program(specification.program), planned)
    module = build_module(source, dtype=job.dtype)
    for size in sorted({*job.micro_batch_sizes, job.micro_batch_size}) if is_standby else ():
        recorded(source, module, size, job.dtype)
    expect(*MESSAGES)
    gc.collect()
    # What is there now stays; later collections need not look at it.
    gc.freeze()


def _fingerprint(specification: RunSpecification) -> str | None:
    return None if specification.program is None else specification.program.sha256


def _let_go() -> None:
    """Drops all process groups without waiting for anybody."""
    if dist.is_initialized():
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group()
