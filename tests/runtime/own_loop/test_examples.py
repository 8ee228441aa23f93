"""The examples run, on two processes, and learn."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.runtime.torchrun import torchrun_command
from tests.runtime.trainer_plans import plan_of_cuts


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "cut", "num_layers"),
    [("finetune_llama", 3, 6), ("train_click_through", 26, 38)],
)
def test_example_trains_on_two_processes(
    module: str, cut: int, num_layers: int, tmp_path: Path
) -> None:
    if module == "finetune_llama":
        pytest.importorskip("transformers")
    plan = tmp_path / "plan.yaml"
    plan_of_cuts(cut, num_layers=num_layers).to_file(plan)
    command = torchrun_command(plan, 2, module=f"heterps_runtime.examples.{module}")
    done = subprocess.run([*command, "30"], timeout=60, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    # Two processes may print into one line.
    found = re.findall(r"loss (\d+\.\d+) -> (\d+\.\d+)", done.stdout)
    assert len(found) == 2
    assert found[0] == found[1], "every rank knows the loss"
    assert float(found[0][1]) < float(found[0][0])
