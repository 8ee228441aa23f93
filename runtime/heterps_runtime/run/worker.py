"""One process of a run: builds its stages, executes its actions step by step, and reports.

`main([RUN_DIRECTORY])` is a rank of a run, `main([RUN_DIRECTORY, "--reference"])` trains the whole
model in one process, to verify the losses of the first. The launcher has both forked. Rank 0
prints one JSON line for each step on standard output; `heterps_runtime.run.launcher` reads them.
What else a rank prints goes into its log (`heterps_runtime.process.rank_log`).
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import torch

from heterps_configs.documents.yaml_files import write_text
from heterps_configs.errors import HeterpsError
from heterps_runtime.process.allocator import keep_freed_memory
from heterps_runtime.process.memory_report import OutOfMemoryError
from heterps_runtime.process.rank_log import print_into_log
from heterps_runtime.process.without_compiler import keep_compiler_out
from heterps_runtime.run.launcher import LAUNCHER_VARIABLE
from heterps_runtime.run.trainer import Trainer
from heterps_runtime.run.verify import REFERENCE_FILE, reference_losses
from heterps_runtime.specification.devices import available_device
from heterps_runtime.specification.run import SPECIFICATION_FILE, RunSpecification
from heterps_runtime.specification.trust import trust_specification
from heterps_runtime.transport.communication import Communicator
from heterps_runtime.transport.lost_ranks import LostRankError

logger = logging.getLogger(__name__)


def main(arguments: list[str]) -> int:
    """Runs what the specification in the directory says.

    Returns:
        The exit code; where it is not 0, `error-RANK.json` says why.
    """
    directory, is_reference = Path(arguments[0]), "--reference" in arguments
    rank = int(os.environ.get("RANK", "0"))
    watch_parents()
    device = ""
    try:
        specification = RunSpecification.from_json_file(directory / SPECIFICATION_FILE)
        trust_specification(specification)
        torch.set_num_threads(specification.num_threads)
        keep_freed_memory()
        keep_compiler_out()
        if is_reference:
            losses = reference_losses(specification)
            write_text(directory / REFERENCE_FILE, json.dumps(losses))
        else:
            device = specification.devices[rank]
            launcher = print_into_log(directory, rank, device)
            logger.info("rank %d of %d, process %d", rank, len(specification.devices), os.getpid())
            compute = available_device(specification.torch_device(device))
            communicator = Communicator(compute)

            def tell(line: dict[str, Any]) -> None:
                print(json.dumps(line), file=launcher, flush=True)

            Trainer(specification, directory, communicator, on_step=tell).run()
            communicator.close()
    except BaseException as error:
        report_error(directory, "reference" if is_reference else str(rank), device, error)
        return 1
    return 0


def report_error(directory: Path, name: str, device: str, error: BaseException) -> None:
    """Writes `error-NAME.json`: one line for people, and the traceback."""
    own_name, text = name, " ".join(line.strip() for line in str(error).splitlines()).strip()
    message = text or "no message"
    if not isinstance(error, HeterpsError):
        message = f"{type(error).__name__}: {message}"
    if isinstance(error, OutOfMemoryError):
        # Every rank raises it; it is about one.
        name, device = str(error.rank), error.device
    content = {
        "rank": name,
        "device": device,
        "time_s": time.time(),
        "message": message,
        "is_lost_rank": isinstance(error, LostRankError),
        "traceback": "".join(traceback.format_exception(error)),
    }
    write_text(directory / f"error-{own_name}.json", json.dumps(content))
    traceback.print_exception(error)


def watch_parents() -> None:
    """Ends this process when the launcher, or who forked it, is gone: nobody computes alone."""
    parents = [os.getppid()]
    if LAUNCHER_VARIABLE in os.environ:
        parents.append(int(os.environ[LAUNCHER_VARIABLE]))

    def watch() -> None:
        while os.getppid() == parents[0] and all(_is_alive(pid) for pid in parents):
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
