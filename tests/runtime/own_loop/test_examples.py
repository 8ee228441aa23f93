"""The examples run on several processes, and learn."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import torch.distributed as dist

from heterps_configs.documents.plan import Plan
from tests.runtime.torchrun import torchrun_command
from tests.runtime.trainer_plans import chain_of_groups, plan_of_cuts

# Click-through rates need more steps to be learned.
CLICK_STEPS, LLAMA_STEPS = 30, 10


def _losses(
    plan: Plan, num_processes: int, module: str, folder: Path, steps: int
) -> tuple[str, str]:
    """The first and the last loss that each rank of an example prints."""
    path = folder / f"plan-{num_processes}.yaml"
    plan.to_file(path)
    command = torchrun_command(path, num_processes, module=f"heterps_runtime.examples.{module}")
    done = subprocess.run([*command, str(steps)], timeout=120, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    # Several processes may print into one line.
    found = re.findall(r"loss (\d+\.\d+) -> (\d+\.\d+)", done.stdout)
    assert len(found) == num_processes
    assert len(set(found)) == 1, "every rank knows the loss"
    first, last = found[0]
    assert float(last) < float(first)
    return first, last


@pytest.mark.slow
def test_click_through_rates_are_learned_on_two_processes(tmp_path: Path) -> None:
    _losses(plan_of_cuts(26, num_layers=38), 2, "train_click_through", tmp_path, CLICK_STEPS)


@pytest.mark.slow
def test_llama_learns_on_two_groups_of_two_what_it_learns_on_one_process(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from heterps_runtime.examples import finetune_llama

    together = _losses(chain_of_groups(3, num_layers=6), 4, "finetune_llama", tmp_path, LLAMA_STEPS)
    plan_of_cuts(num_layers=6).to_file(tmp_path / "plan-1.yaml")
    try:
        alone = finetune_llama.main(str(tmp_path / "plan-1.yaml"), LLAMA_STEPS)
    finally:
        dist.destroy_process_group()
    assert list(map(float, together)) == pytest.approx([alone[0], alone[-1]], abs=1e-4)
