"""Training configurations for graphs: found by name, told from those for chains, checked."""

from pathlib import Path

import pytest

from heterps_configs import library
from heterps_configs.documents.training import ChainTrainingConfig, GraphTrainingConfig
from heterps_configs.errors import DocumentError


def test_configurations_for_graphs_and_chains_share_a_folder() -> None:
    assert isinstance(library.load("training", "graph-generalist"), GraphTrainingConfig)
    assert isinstance(library.load("training", "quick"), ChainTrainingConfig)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("problems: graphs", "training has to end"),
        ("problems: chains\nbudget_s: 1", "problems"),
        ("problems: graphs\nbudget_s: 1\nnodes: [9, 8]", "nodes: the smallest, 9"),
        ("problems: graphs\nbudget_s: 1\ndevices: [2, 17]", "16 devices"),
        ("problems: graphs\nbudget_s: 1\nfirst_nodes: 80", "first_nodes: 80"),
        ("problems: graphs\nbudget_s: 1\nrollouts: 1", "rollouts"),
        ("problems: graphs\nbudget_s: 1\nlayers: [1, 2]", "layers"),
        (
            "problems: graphs\nbudget_s: 1\nproblems_per_update: 1000000",
            "problems_per_update: 1000000 problems x rollouts 8 are 8000000 placements",
        ),
        ("problems: graphs\nbudget_s: 1\nevaluation_problems: 1000000", "at most 10000"),
        (
            "budget_s: 1\nnum_environments: 1000000",
            "num_environments: 1000000 episodes x steps_per_update 16 are 16000000 decisions .*"
            "at most 524288 are supported",
        ),
        ("budget_s: 1\nimitation_passes: 9\nimitation_problems: 1000000", "at most 65536 are"),
        ("budget_s: 1\ndevices_per_class: [1, 1000000]", "devices_per_class: up to 1000000"),
        ("budget_s: 1\ncurve_problems: 1000000", "curve_problems: .*at most 10000"),
    ],
)
def test_broken_configurations_name_the_field(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text + "\n")
    with pytest.raises(DocumentError, match=message.replace("[", r"\[")):
        library.load("training", path)
