"""Exported scripts, run with a process for each device on this machine, beside one process."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

from heterps_configs.documents.plan import Plan
from heterps_envs.problem import Problem

TIMEOUT_S = 300
# DeepSpeed's step as the script says it, with a step of SGD that shows the size of a gradient, and
# what each rank has.
_DEEPSPEED = """
import json, train
from pathlib import Path

class Seen(train.PlannedPipeline):
    def _precompute_checkpointable_values(self):
        super()._precompute_checkpointable_values()
        marks = enumerate(self.is_checkpointable_results, self._local_start)
        again = [number for number, is_again in marks if is_again]
        Path(f"again-{self.global_rank}.json").write_text(json.dumps(again))

    def train(self, *given):
        own = [self.stage_id, self._local_start, self._local_stop]
        Path(f"seen-{self.global_rank}.json").write_text(json.dumps(own))
        return super().train(*given)

train.PlannedPipeline = Seen
train.CONFIG["optimizer"] = {"type": "SGD", "params": {"lr": 0.5}}
train.main()
"""
_ALONE = """
import torch, train
torch.manual_seed(0)
model, (inputs, target) = train.build_model(), train.example(BATCH)
optimizer = torch.optim.OPTIMIZER
for _ in range(3):
    output = model(*inputs)
    output = output if isinstance(output, torch.Tensor) else output[0]
    loss = train.loss_function(output, target)
    print(f"loss {loss.item():.6f}")
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def deepspeed(problem: Problem, plan: Plan, folder: Path) -> str:
    """Its engine on gloo: layers of each rank, those that are computed again, and losses."""
    if importlib.util.find_spec("deepspeed") is None:
        raise ImportError("No module named 'deepspeed'")
    (folder / "seen.py").write_text(_DEEPSPEED)
    output = _run(folder, "seen.py", len(plan.devices))
    # The last layer of the profile, norm and head, is two of the script's.
    names = [layer.name.split("+") for layer in problem.profile.layers]
    starts = [sum(map(len, names[:index])) for index in range(len(names) + 1)]
    expected, again = {}, {}
    for replica, pipeline in enumerate(plan.pipelines):
        for number, name in enumerate(pipeline.stages):
            stage, rank = plan.stage(name), number * len(plan.pipelines) + replica
            ends = starts[stage.first_layer], starts[stage.last_layer + 1]
            expected[rank] = [number, *ends]
            again[rank] = [i for n in stage.recompute_layers for i in range(*starts[n : n + 2])]
    found = _told(folder, "seen")
    assert found == expected, f"ranks have {found}, and the plan {expected}"
    if any(again.values()):
        found = _told(folder, "again")
        assert found == again, f"computed again are {found}, in the plan {again}"
    return _compared(folder, output, problem, "SGD(model.parameters(), lr=0.5)")


def torch_pipelining(problem: Problem, plan: Plan, folder: Path) -> str:
    """Torch's own schedule on gloo: losses."""
    output = _run(folder, "train.py", len(plan.devices))
    return _compared(folder, output, problem, "AdamW(model.parameters(), lr=1e-3)")


def _told(folder: Path, word: str) -> dict[int, list[int]]:
    """By rank, what it wrote: lines that ranks print may run together."""
    files = folder.glob(f"{word}-*.json")
    return {int(file.stem.rpartition("-")[2]): json.loads(file.read_text()) for file in files}


def _compared(folder: Path, output: str, problem: Problem, optimizer: str) -> str:
    batch = str(problem.job.global_batch_size)
    script = _ALONE.replace("BATCH", batch).replace("OPTIMIZER", optimizer)
    (folder / "alone.py").write_text(script)
    expected = _losses(_subprocess(folder, [sys.executable, "alone.py"]))
    found = _losses(output)
    assert len(found) == 3, f"no losses: {output[-500:]}"
    worst = max(abs(a - b) for a, b in zip(found, expected, strict=True))
    assert worst < 1e-4, f"losses {found}, in one process {expected}"
    return f"three steps, loss {found[0]:.4f} -> {found[-1]:.4f}, differs by {worst:.0e} at most"


def _losses(output: str) -> list[float]:
    return [float(text) for text in re.findall(r"loss (\d[\d.]*)", output)]


def _run(folder: Path, script: str, size: int) -> str:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return _subprocess(folder, [*launcher, "--nproc-per-node", str(size), script])


def _subprocess(folder: Path, command: list[str]) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    run = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert run.returncode == 0, f"{command[-1]} ended with {run.returncode}: {run.stderr[-800:]}"
    return run.stdout
