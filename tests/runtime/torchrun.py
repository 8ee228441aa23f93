"""The command of torchrun, with which users start programs that train under a plan."""

from __future__ import annotations

import sys
from pathlib import Path

STANDALONE = ("--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1")


def torchrun_command(
    argument: Path, num_processes: int, module: str, meeting: tuple[str, ...] = STANDALONE
) -> list[str]:
    """Starts ranks of this host that execute a module.

    Args:
        argument: Of the module.
        num_processes: Ranks on this host.
        module: What each of them executes.
        meeting: Options that say where ranks meet.
    """
    start = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={num_processes}"]
    return [*start, *meeting, "--max-restarts=0", "-m", module, str(argument)]
