"""What is written beside weights can be read by anything that reads JSON."""

import json
import math

from heterps_agents.learned.policy_file import finite_or_none


def test_scores_without_a_placement_are_null_in_json() -> None:
    scores = {"mean": math.inf, "median": 0.25, "p95": math.nan}
    written = json.dumps(finite_or_none(scores), allow_nan=False)
    assert json.loads(written) == {"mean": None, "median": 0.25, "p95": None}
