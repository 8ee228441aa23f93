"""Comparisons of one model on one cluster lie beside each other, named by what differs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from heterps.planning.problems import load_problem
from heterps.reports.tensorboard_report import comparison_folder
from heterps_configs.documents.job import Strategy


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({}, "a100-v100"),
        ({"global_batch_size": 64}, "a100-v100,global_batch_size=64"),
        ({"dtype": "float32", "objective": "price"}, "a100-v100,dtype=float32,objective=price"),
        ({"micro_batch_size": 4}, "a100-v100,micro_batch_size=4"),
        (
            {"strategy": Strategy(tensor_parallel=(1, 2), recompute="auto", shard_state="auto")},
            "a100-v100,tensor_parallel=1+2",
        ),
    ],
)
def test_a_comparison_is_named_by_what_differs(options: dict[str, Any], name: str) -> None:
    problem = load_problem("gpt2", "a100-v100", **options)
    assert comparison_folder(problem, Path("runs")) == Path("runs") / "gpt2" / name
