"""Sailor's importers: units, links without a default, and errors that name the place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from heterps_configs.errors import DocumentError, HeterpsError, UnknownNameError
from heterps_configs.importers import sailor
from heterps_configs.importers.sailor_profile import sailor_layers
from heterps_configs.importers.sailor_runs import SailorGroup, SailorStage, load_run


def write(path: Path, content: Any) -> Path:
    """A JSON file."""
    path.write_text(json.dumps(content))
    return path


def sizes(parameters: int = 10) -> dict[str, int]:
    """One layer of `llm_info.json`."""
    return {"params_floats": parameters, "act_output_floats": 20, "act_mem_floats": 30}


PROFILES = {"tiny": {"fast": {"2": {"1": {"1": [3, 4, 5], "0": [0.1, 0.2, 0.3]}}}}}
SIZES = {"tiny": {"1": {"0": sizes(), "1": sizes(11)}}}
PAIR = [[0.0, 1.0, 2.0], 5e9]


def load(tmp_path: Path, profiles: Any = PROFILES, layers: Any = SIZES) -> sailor.SailorModel:
    """The model `tiny` from two files."""
    return sailor.load_model(
        write(tmp_path / "profiles.json", profiles), write(tmp_path / "sizes.json", layers), "tiny"
    )


def test_layers_come_in_their_order_whatever_the_order_of_the_file(tmp_path: Path) -> None:
    model = load(tmp_path)
    times = model.layer_times(sailor.SailorShape("fast", 2, 1))
    assert times == ((0.1, 0.2, 0.3), (3, 4, 5))
    assert [layer.parameters for layer in model.layer_sizes(1)] == [10, 11]
    assert model.num_layers == 2


def test_what_nobody_measured_is_an_error(tmp_path: Path) -> None:
    model = load(tmp_path)
    with pytest.raises(HeterpsError, match="no profile of fast with micro-batch size 4"):
        model.layer_times(sailor.SailorShape("fast", 4, 1))
    with pytest.raises(HeterpsError, match="no layer sizes for tensor-parallel degree 2; known: 1"):
        model.layer_sizes(2)


@pytest.mark.parametrize(
    ("profiles", "message"),
    [
        ({"tiny": {"fast": {"2": {"1": {"0": [1, 2, 3]}}}}}, "fast.2.1: has 1 layers"),
        ({"tiny": {"fast": {"2": {"1": {"0": [1, 2, 3], "2": [1, 2, 3]}}}}}, "'1' is missing"),
        ({"tiny": {"fast": {"x": {}}}}, "'x' is no micro-batch size"),
        ({"tiny": {"fast": {"2": {"1": {"0": [1, 2], "1": [1, 2, 3]}}}}}, "must have 3 values"),
        ({"tiny": {"fast": {"2": {"1": {"0": [1, 2, -3], "1": [1, 2, 3]}}}}}, "at least 0, got -3"),
        ({"tiny": {"fast": {"2": {"1": {"0": "no", "1": [1, 2, 3]}}}}}, "must be a list, got 'no'"),
        ({"tiny": 7}, "tiny: must be a mapping, got 7"),
    ],
)
def test_a_malformed_profile_is_named_with_its_place(
    tmp_path: Path, profiles: Any, message: str
) -> None:
    with pytest.raises(DocumentError, match=message):
        load(tmp_path, profiles=profiles)


def test_unknown_models_and_files_that_are_no_json_are_errors(tmp_path: Path) -> None:
    file = write(tmp_path / "profiles.json", PROFILES)
    with pytest.raises(UnknownNameError, match="did you mean tiny"):
        sailor.load_model(file, file, "tinny")
    file.write_text('{"tiny": \n oops}')
    with pytest.raises(DocumentError, match=r"profiles\.json: line 2"):
        sailor.load_model(file, file, "tiny")
    with pytest.raises(HeterpsError, match="cannot be read"):
        sailor.load_links(tmp_path / "absent.json")


def test_degrees_with_different_layers_are_an_error(tmp_path: Path) -> None:
    layers = {"tiny": {"1": {"0": sizes(), "1": sizes()}, "2": {"0": sizes()}}}
    with pytest.raises(DocumentError, match="every tensor-parallel degree must have the same"):
        load(tmp_path, layers=layers)


def test_a_link_follows_its_quadratic_in_log2_of_the_megabytes() -> None:
    link = sailor.SailorLink((0.5, 1.0, 2.0), 5e9)
    # 4 MB: log2 is 2, so 0.5 * 4 + 1 * 2 + 2 = 6 GB/s.
    assert link.send_s(4e6) == pytest.approx(0.004 / 6)
    assert link.send_s(0) == 0
    with pytest.raises(HeterpsError, match="the fit of a link gives -"):
        sailor.SailorLink((0.0, 1.0, 0.0), 5e9).send_s(1000)


def test_a_pair_of_gpus_without_a_link_is_an_error_and_not_a_default(tmp_path: Path) -> None:
    table = {"zone": {"fast": {"1": {"zone": {"fast": {"1": PAIR}}}}}}
    links = sailor.load_links(write(tmp_path / "links.json", table))
    fast, slow = sailor.SailorEnd("fast", 1, "zone"), sailor.SailorEnd("slow", 1, "zone")
    assert links.between(fast, fast).max_bytes_per_s == 5e9
    with pytest.raises(HeterpsError, match="no link from 1 x fast in zone to 1 x slow in zone"):
        links.between(fast, slow)


def test_malformed_links_are_named_with_their_place(tmp_path: Path) -> None:
    table = {"zone": {"fast": {"1": {"zone": {"fast": {"1": [[1.0, 2.0], 5e9]}}}}}}
    with pytest.raises(DocumentError, match=r"zone\.fast\.1\.zone\.fast\.1\.0: must have 3 values"):
        sailor.load_links(write(tmp_path / "links.json", table))


def test_links_inside_a_node_and_clusters_are_read(tmp_path: Path) -> None:
    inside = sailor.load_intra_node_links(write(tmp_path / "inside.json", {"fast": {"2": PAIR}}))
    assert inside == {("fast", 2): sailor.SailorLink((0.0, 1.0, 2.0), 5e9)}
    entry = {"gpus_per_node": 4, "mem_per_gpu": 100}
    cluster = sailor.load_cluster(write(tmp_path / "cluster.json", {"fast": entry, "zone": "here"}))
    assert (cluster.zone, cluster.node_type("fast")) == ("here", (4, 100))
    with pytest.raises(UnknownNameError):
        cluster.node_type("slow")
    half = {"gpus_per_node": 4.5, "mem_per_gpu": 100}
    file = write(tmp_path / "cluster.json", {"fast": half, "zone": "here"})
    with pytest.raises(DocumentError, match=r"gpus_per_node: must be a whole number, got 4\.5"):
        sailor.load_cluster(file)


def test_the_layers_of_a_model_are_those_of_a_profile(tmp_path: Path) -> None:
    layers = sailor_layers(load(tmp_path))
    assert [layer.num_parameters for layer in layers] == [10, 11]
    assert [layer.output_bytes for layer in layers] == [80, 0]


def test_what_a_group_splits_follows_from_the_sizes_on_one(tmp_path: Path) -> None:
    def layer(parameters: int, activation: int) -> dict[str, int]:
        return {**sizes(parameters), "act_mem_floats": activation}

    # Of the first, 64 of 100 parameters and 32 of 40 numbers are split; of the second, nothing.
    layers = {
        "1": {"0": layer(100, 40), "1": layer(7, 9)},
        "4": {"0": layer(52, 16), "1": layer(7, 9)},
    }
    first, second = sailor_layers(load(tmp_path, layers={"tiny": layers}))
    split = first.tensor_split
    assert split is not None
    assert (split.num_units, split.parameters, split.activation_bytes) == (4, 64, 32 * 4)
    assert second.tensor_split is None


def run_file(tmp_path: Path, layers: list[list[int]]) -> Path:
    """A measured run of two stages on one node each."""
    group = [[["fast", 4, "here"]], 4]
    pipeline = {
        "num_stages": 2,
        "layers_per_stage": layers,
        "tmp_per_stage": [[group, group], [group, group]],
        "dp": [2, 2],
    }
    content = {"pipeline_list": [pipeline], "mbs": 2, "gbs": 8, "real": 1.5, "max_mem": 9}
    return write(tmp_path / "run.json", content)


def test_a_measured_run_is_read_with_its_plan(tmp_path: Path) -> None:
    run = load_run(run_file(tmp_path, [[0, 1, 2], [3]]))
    group = SailorGroup("fast", 4, "here")
    assert run.plan.stages == (SailorStage(0, 3, (group, group)), SailorStage(3, 4, (group, group)))
    assert (run.measured_s, run.plan.global_batch_size) == (1.5, 8)


@pytest.mark.parametrize("layers", [[[0, 1, 2], [4]], [[0, 29, 2], [3]], [[0, 1], []]])
def test_stages_that_do_not_follow_each_other_are_an_error(
    tmp_path: Path, layers: list[list[int]]
) -> None:
    with pytest.raises(DocumentError, match="must be consecutive layers from"):
        load_run(run_file(tmp_path, layers))
