"""The examples run on several processes, and learn."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from heterps_configs.documents.plan import Plan
from heterps_runtime.run.launcher import run_ranks
from tests.runtime.trainer_plans import chain_of_groups, plan_of_cuts

# Click-through rates need more steps to be learned.
CLICK_STEPS, LLAMA_STEPS = 30, 10


def _losses(plan: Plan, num_processes: int, module: str, folder: Path, steps: int) -> list[float]:
    """Of every step of an example, which all ranks know."""
    folder.mkdir(exist_ok=True)
    plan.to_file(folder / "plan.yaml")
    run_ranks("tests.runtime.example_ranks", num_processes, folder, 120, [module, str(steps)])
    first, *others = (
        json.loads((folder / f"losses-{rank}.json").read_text()) for rank in range(num_processes)
    )
    assert all(other == first for other in others)
    losses: list[float] = first
    assert len(losses) == steps
    assert losses[-1] < losses[0]
    return losses


@pytest.mark.slow
def test_click_through_rates_are_learned_on_two_processes(tmp_path: Path) -> None:
    _losses(plan_of_cuts(26, num_layers=38), 2, "train_click_through", tmp_path, CLICK_STEPS)


@pytest.mark.slow
def test_llama_learns_on_two_groups_of_two_what_it_learns_on_one_process(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    together, alone = (
        _losses(plan, processes, "finetune_llama", tmp_path / str(processes), LLAMA_STEPS)
        for plan, processes in (
            (chain_of_groups(3, num_layers=6), 4),
            (plan_of_cuts(num_layers=6), 1),
        )
    )
    assert together == pytest.approx(alone, abs=1e-4)
