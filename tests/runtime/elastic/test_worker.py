"""What is a lost rank to a process of an elastic run, and what is an error of its user's code."""

from __future__ import annotations

from pathlib import Path

import pytest

from heterps_configs.errors import HeterpsError
from tests.runtime.elastic.small_runs import Chains, ElasticCase
from tests.runtime.imitations import TEXT
from tests.runtime.processes import processes_of
from tests.runtime.small_runs import DEVICES, problem_of


@pytest.mark.slow
@pytest.mark.parametrize("place", ["data", "backward"])
def test_an_error_that_reads_like_a_lost_rank_ends_the_run_at_once(
    place: str, tmp_path: Path
) -> None:
    case = ElasticCase(problem_of(place), tmp_path / "run", devices=DEVICES[:2])
    with pytest.raises(HeterpsError) as error:
        case.run(Chains(case.problem))
    assert str(error.value) == f"rank 1 (d1): RuntimeError: {TEXT}"
    assert "connecting anew" not in case.text
    assert not processes_of(case.directory)
