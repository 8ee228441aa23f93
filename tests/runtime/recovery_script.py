"""One rank of a recovery between processes; one of them is killed in the middle of it.

Rank 0 is new, the two others hold trained stages. Rank 2 ends when all look for checkpoints; the
others find its connections closed, meet again, and recover without it. Results are in `RANK.json`.
"""

from __future__ import annotations

import json
import os
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.fx.experimental.symbolic_shapes  # for all ranks, which are forked from here
from torch import Tensor

from heterps_configs.documents.plan import Plan
from heterps_configs.documents.run_settings import CheckpointSettings
from heterps_envs.problem import Problem
from heterps_runtime.elastic.state_recovery import Recovered, recover
from heterps_runtime.execution.local_run import LocalRun
from heterps_runtime.process.without_compiler import keep_compiler_out
from heterps_runtime.stages.build import build_stages
from heterps_runtime.stages.owned_stages import OwnedStages
from heterps_runtime.stages.start_values import Blank
from heterps_runtime.state.checkpoint import load_state_dict
from heterps_runtime.state.checkpoint_tiers import CheckpointTiers, SavedStep
from heterps_runtime.state.layout import HeldState
from heterps_runtime.state.migrate import held_by
from heterps_runtime.transport.communication import Communicator
from heterps_runtime.transport.lost_ranks import LostRankError
from tests.runtime.local_states import save, specification_of
from tests.runtime.small_runs import DEVICES, chain_of, problem_of

STEPS, SAVED = 3, 2


def main(arguments: list[str]) -> int:
    """Recovers twice, and says what came of it."""
    folder, rank = Path(arguments[0]), int(arguments[1])
    torch.set_num_threads(1)
    keep_compiler_out()
    problem = problem_of("sequential")
    run = LocalRun(specification_of(problem, chain_of(problem, 2, 4, devices=DEVICES[:3])))
    for step in range(STEPS):
        if step == SAVED and rank == 0:
            save(run, folder / "saved", SAVED)
        run.step()
    held = HeldState({}) if rank == 0 else held_by(run.owned[DEVICES[rank]])
    tiers = CheckpointTiers(CheckpointSettings(folder=str(folder / "saved")))
    if rank == 2:
        tiers.saved_steps = _end  # type: ignore[method-assign]
    message = ""
    try:
        _recovered(folder, problem, rank, chain_of(problem, 2, 6, devices=DEVICES[:3]), held, tiers)
    except LostRankError as error:
        message = str(error)
    dist.destroy_process_group()
    plan = chain_of(problem, 6, devices=DEVICES[:2])
    found, state = _recovered(folder, problem, rank, plan, held, tiers)
    saved = load_state_dict(folder / "saved").model
    result = {
        "message": message,
        "is_lost_rank": bool(message),
        "step": found.step,
        "bytes": found.bytes_by_source,
        "is_equal": all(torch.equal(value, saved[name]) for name, value in state.items()),
        "names": sorted(state),
    }
    (folder / f"{rank}.json").write_text(json.dumps(result))
    return 0


def _recovered(
    folder: Path, problem: Problem, rank: int, plan: Plan, held: HeldState, tiers: CheckpointTiers
) -> tuple[Recovered, dict[str, Tensor]]:
    """All ranks of a plan meet and recover; the parameters that this one has then."""
    size = len(plan.devices)
    store, limit = f"file://{folder / f'store-{size}'}", timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=size, timeout=limit)
    specification = specification_of(problem, plan)
    communicator = Communicator()
    modules = build_stages(specification, DEVICES[rank], Blank())
    owned = OwnedStages(specification, modules, communicator)
    step = STEPS if held.tensors else None
    found = recover(held, step, specification, owned, communicator, tiers)
    return found, dict(owned.parameters)


def _end() -> tuple[list[SavedStep], list[str]]:
    os._exit(9)
