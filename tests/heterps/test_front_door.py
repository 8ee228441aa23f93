"""What a program gets from `import heterps`."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

import heterps
from heterps import HeterpsError, PlaceResult, load_problem, place, place_code
from heterps_configs.errors import InfeasibleError
from heterps_envs.environments.layer.env import LayerPlacementEnv


class Blocks(nn.Module):
    """Layers in a list, called by name."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(32, 32) for _ in range(4)])
        self.head = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        out: torch.Tensor = self.head(x)
        return out


def test_the_module_shows_its_names_before_they_are_used() -> None:
    script = "import heterps, sys; print(*dir(heterps)); assert 'torch' not in sys.modules"
    shown = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    ).stdout.split()
    assert set(heterps.__all__) <= set(shown)
    assert [name for name in dir(heterps) if not hasattr(heterps, name)] == []


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_a_module_and_a_batch_make_a_problem(dtype: str | None) -> None:
    module = Blocks()
    before = [parameter.clone() for parameter in module.parameters()]
    problem = load_problem(module, "a100-v100", example=torch.zeros(2, 32), dtype=dtype)
    assert problem.profile.name == "Blocks"
    assert problem.job.dtype == problem.profile.dtype == (dtype or "float32")
    sizes = [layer.num_parameters for layer in problem.profile.layers]
    assert sizes == [32 * 33] * 4 + [330]
    assert all(map(torch.equal, before, module.parameters()))
    factory = load_problem(Blocks, "a100-v100", example={"x": torch.zeros(1, 32)}, dtype=dtype)
    assert factory.profile.layers == problem.profile.layers
    example = heterps.Example(torch.zeros(1, 32), torch.zeros(1, dtype=torch.long))
    told = load_problem(Blocks, "a100-v100", example=example, dtype=dtype)
    assert told.profile.layers == problem.profile.layers


def test_a_module_says_what_it_lacks() -> None:
    with pytest.raises(HeterpsError, match="a module needs an example"):
        load_problem(Blocks(), "a100-v100")
    with pytest.raises(HeterpsError, match=r"^Blocks#.*its forward pass fails"):
        load_problem(Blocks(), "a100-v100", example=torch.zeros(2, 3))
    with pytest.raises(HeterpsError, match="gpt2: an example is for a module"):
        load_problem("gpt2", "a100-v100", example=torch.zeros(2, 3))


def test_what_an_environment_found_is_a_plan() -> None:
    problem = load_problem("gpt2", "a100-v100-t4", global_batch_size=16)
    env = LayerPlacementEnv([problem.tables], max_classes=len(problem.classes))
    _, info = env.reset(seed=1)
    is_over = False
    while not is_over:
        *_, is_over, _, info = env.step(int(info["action_mask"].argmax()))
    assert info["verdict"] == "fits"
    result = place_code(problem, info["code"], name="mine")
    assert isinstance(result, PlaceResult)
    assert result.plan.planner == "mine"
    assert result.estimate.closed_form_step_time_s == pytest.approx(info["step_time_s"])


def test_a_code_of_another_problem_is_refused() -> None:
    problem = load_problem("gpt2", "a100-v100-t4", global_batch_size=16)
    layers = problem.profile.num_layers
    for code, text in {
        (0,) * (layers - 1): f"expected {layers} integers",
        (0.5,) * layers: f"expected {layers} integers",
        (-1,) * layers: "no environment makes",
        (7,) * layers: "layer 0 is on device class 7; the problem has",
    }.items():
        with pytest.raises(HeterpsError, match=text):
            place_code(problem, code)
    with pytest.raises(InfeasibleError, match="asks for"):
        place_code(problem, np.full(layers, 0x3F00, np.int32))


def test_results_are_one_line_in_a_shell() -> None:
    problem = load_problem("gpt2", "a100-v100-t4")
    result = place(problem, "even")
    compared = heterps.compare(problem, ["even"], evaluations=1)
    for each, name in ((problem, "Problem"), (result, "PlaceResult"), (compared, "Comparison")):
        assert repr(each).startswith(f"{name}(gpt2 on a100-v100-t4")
        assert len(repr(each)) < 400
        assert "\n" not in repr(each)
