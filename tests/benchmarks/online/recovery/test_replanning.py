"""The section of plans after losses: what it makes of predictions."""

from __future__ import annotations

import pytest

from benchmarks.online.recovery.replanning import FLEETS, _rule_row
from heterps_agents.recovery.model import Prediction
from heterps_configs.documents.job import Job
from heterps_configs.documents.plan import Pipeline, Plan
from heterps_configs.documents.stage import Stage

PLAN = Plan(
    model="any", model_fingerprint="any", num_layers=1, cluster="any",
    job=Job(global_batch_size=1),
    stages=(Stage(name="s0", first_layer=0, last_layer=0, devices=("a",)),),
    pipelines=(Pipeline(stages=("s0",), micro_batches=(0,)),),
)  # fmt: skip


def prediction(rule: str, seconds: float) -> Prediction:
    return Prediction(rule, PLAN, 1.0, 0.0, 0.0, 0, 0.0, seconds)


def test_each_rule_is_compared_where_it_has_a_plan() -> None:
    finish = [
        {"simple": prediction("simple", 2.0), "merge": prediction("merge", 3.0)},
        {"merge": prediction("merge", 4.0)},
    ]
    row = _rule_row(FLEETS[0], 10, finish)
    assert row["chosen"] == "simple 1, merge 1"
    assert row["over_simple"] == 0
    assert row["over_merge"] == pytest.approx(0.25)
    assert row["over_borrow"] == "-"
    assert row["losses"] == 2
