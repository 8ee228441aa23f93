"""Workers do without torch's compiler until a model asks for it."""

from __future__ import annotations

import subprocess
import sys

import pytest

_PROGRAM = """
import sys, torch
from heterps_runtime.process.without_compiler import keep_compiler_out

keep_compiler_out()
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

layer = torch.nn.Linear(2, 2)
# As on a rank that records nothing, whose start values come from others.
checkpoint(layer, torch.ones(1, 2), use_reentrant=False).sum().backward()
FakeTensorMode()
optimizer = torch.optim.AdamW(layer.parameters())
optimizer.step()
optimizer.zero_grad()
assert "torch._dynamo.symbolic_convert" not in sys.modules
assert torch._dynamo.is_compiling() is False, "what the stand-in does not know"
assert "torch._dynamo.symbolic_convert" in sys.modules
keep_compiler_out()
compiled = torch.compile(lambda x: x + 1, backend="eager")
assert compiled(torch.ones(2)).tolist() == [2.0, 2.0]
optimizer.step()
"""


@pytest.mark.slow
def test_the_compiler_is_imported_when_it_is_asked_for_and_not_before() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_worker_imports_no_pipelining_of_torch() -> None:
    program = (
        "import sys, heterps_runtime.run.worker\n"
        "assert not [m for m in sys.modules if m.startswith('torch.distributed.pipelining')]\n"
        "assert not [m for m in sys.modules if m.startswith('torch._dynamo')]\n"
        "assert 'numba' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_stage_whose_values_come_from_other_ranks_is_made_without_the_compiler() -> None:
    program = (
        "import sys, torch, heterps_runtime.run.worker\n"
        "from heterps_runtime.stages.start_values import Blank\n"
        "layer = torch.nn.Conv2d(2, 3, 3, device='meta').to(memory_format=torch.channels_last)\n"
        "made = Blank().parameters(layer, ['weight'])['weight']\n"
        "assert made.stride() == layer.weight.stride() and made.device.type == 'cpu'\n"
        "assert 'sympy' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
