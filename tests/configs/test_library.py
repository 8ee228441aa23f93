"""References: a path, a name of one's own, a shipped name, and what is said on a miss."""

import os
from pathlib import Path

import pytest

from heterps_configs import library
from heterps_configs.documents.cluster import Cluster
from heterps_configs.errors import DocumentError, HeterpsError, UnknownNameError
from heterps_configs.library import CONFIG_PATH_VARIABLE, KINDS

NEEDED_CLUSTERS = {
    "a100-v100": {"A100-40G": 2, "V100-16G": 2},
    "a100-v100-t4": {"A100-40G": 4, "V100-16G": 8, "T4": 4},
    "gpu-cpu": {"RTX-4090": 1, "cpu-socket": 1},
    "h100-pod": {"H100-80G": 16},
    "local-emulated": {"emulated-4x": 1, "emulated-2x": 1, "emulated-1x": 2},
}


@pytest.fixture(autouse=True)
def _empty_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(CONFIG_PATH_VARIABLE, raising=False)


def device_counts(cluster: Cluster) -> dict[str, int]:
    types = [device.type.name for device in cluster.devices]
    return {name: types.count(name) for name in types}


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (kind, name)
        for kind, entry in KINDS.items()
        if entry.document
        for name in library.shipped(kind)
    ],
)
def test_every_shipped_document_loads(kind: str, name: str) -> None:
    document = library.load(kind, name)
    assert getattr(document, "name", name) == name
    assert getattr(document, "description", "a catalogue")


@pytest.mark.parametrize("name", NEEDED_CLUSTERS)
def test_the_shipped_clusters_are_what_they_are_called(name: str) -> None:
    assert device_counts(library.load_cluster(name)) == NEEDED_CLUSTERS[name]


def test_eight_types_has_two_to_four_of_each() -> None:
    counts = device_counts(library.load_cluster("eight-types"))
    assert len(counts) == 8
    assert set(counts.values()) <= {2, 3, 4}


def test_the_spot_fleet_is_cheaper_than_on_demand_and_spans_two_regions() -> None:
    devices = library.load_cluster("spot-two-regions").devices
    assert len({device.region for device in devices}) == 2
    assert all(device.price_usd_per_hour < device.type.price_usd_per_hour for device in devices)


def test_relative_speeds_of_the_emulated_cluster_are_4_2_1_1() -> None:
    slowdowns = [
        device.type.emulation.slowdown
        for device in library.load_cluster("local-emulated").devices
        if device.type.emulation
    ]
    assert [16 / slowdown for slowdown in slowdowns] == [4, 2, 1, 1]


def test_a_path_wins_over_a_name(tmp_path: Path) -> None:
    copied = library.copy("gpu-cpu", tmp_path)
    assert library.load_cluster(str(copied)) == library.load_cluster(copied)
    assert library.load_cluster("gpu-cpu.yaml") == library.load_cluster("gpu-cpu")


@pytest.mark.parametrize("folder", ["", "clusters"])
def test_a_name_of_ones_own_wins_over_a_shipped_one(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = library.copy("local-emulated", tmp_path / "own" / folder)
    own.rename(own.with_name("h100-pod.yaml"))
    monkeypatch.setenv(
        CONFIG_PATH_VARIABLE, os.pathsep.join([str(tmp_path / "nothing"), str(tmp_path / "own")])
    )
    assert library.load_cluster("h100-pod").name == "local-emulated"
    assert library.load_cluster("gpu-cpu").name == "gpu-cpu"


def test_a_name_of_ones_own_is_suggested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = library.copy("gpu-cpu", tmp_path)
    own.rename(own.with_name("workshop.yaml"))
    monkeypatch.setenv(CONFIG_PATH_VARIABLE, str(tmp_path))
    with pytest.raises(UnknownNameError, match="did you mean workshop"):
        library.load_cluster("workshpo")


def test_an_unknown_cluster_suggests_near_names() -> None:
    with pytest.raises(UnknownNameError, match="unknown cluster 'local_emulated'; did you mean"):
        library.load_cluster("local_emulated")


def test_an_unknown_kind_lists_the_kinds() -> None:
    with pytest.raises(UnknownNameError, match="unknown kind 'cluster'; did you mean clusters"):
        library.shipped("cluster")


def test_a_folder_of_the_same_name_does_not_hide_a_shipped_file(tmp_path: Path) -> None:
    (tmp_path / "gpu-cpu").mkdir()
    assert library.load_cluster("gpu-cpu").name == "gpu-cpu"


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("folder", "folder: is a folder; expected a cluster file (.yaml, .yml, .json)"),
        ("notes.txt", "notes.txt: expected a cluster file (.yaml, .yml, .json)"),
        ("missing.yaml", "missing.yaml: no such file"),
        ("folder/missing", "folder/missing: no such file"),
    ],
)
def test_a_path_that_is_no_document_says_why(reference: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(HeterpsError) as caught:
        library.load_cluster(reference)
    assert str(caught.value) == message


def test_a_kind_without_shipped_files_asks_for_a_file() -> None:
    with pytest.raises(HeterpsError, match=r"^mine: no such file; expected a plan file \("):
        library.load_plan("mine")


def test_a_policy_is_not_a_document() -> None:
    with pytest.raises(HeterpsError, match="policies are not documents"):
        library.load("policies", "generalist")


def test_a_broken_file_is_named_as_the_user_wrote_it(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("global_batch_size: -1\n")
    with pytest.raises(DocumentError, match=r"^job\.yaml: global_batch_size: must be greater"):
        library.load_job_fields("job.yaml")


def test_a_json_file_is_a_document_too(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text('{"global_batch_size": 8}')
    assert library.load_job_fields("job.json") == {"global_batch_size": 8}


def test_a_copy_is_byte_for_byte_and_is_not_overwritten_unasked(tmp_path: Path) -> None:
    copied = library.copy("a100-v100", tmp_path / "new")
    assert copied == tmp_path / "new" / "a100-v100.yaml"
    shipped = library.find("clusters", "a100-v100")
    assert copied.read_bytes() == shipped.read_bytes()
    copied.write_text("mine")
    with pytest.raises(
        HeterpsError, match=r"a100-v100\.yaml: exists already; --overwrite replaces"
    ):
        library.copy("a100-v100", tmp_path / "new")
    library.copy("a100-v100", tmp_path / "new", overwrite=True)
    assert copied.read_bytes() == shipped.read_bytes()


def test_a_name_of_two_kinds_says_how_to_choose_one(tmp_path: Path) -> None:
    with pytest.raises(HeterpsError, match="say --kind policies or --kind training"):
        library.copy("generalist", tmp_path)
    assert library.copy("generalist", tmp_path, kind="training").exists()


def test_copying_an_unknown_name_suggests_near_ones() -> None:
    with pytest.raises(UnknownNameError, match="unknown shipped file 'a100v100'; did you mean"):
        library.copy("a100v100", ".")
    with pytest.raises(UnknownNameError, match="unknown model 'a100-v100'"):
        library.copy("a100-v100", ".", kind="models")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_everything_shipped_is_described_in_one_line(kind: str) -> None:
    for name, text in library.describe(kind):
        assert name
        assert text
        assert "\n" not in text


def test_device_types_are_described_by_memory_peak_and_price() -> None:
    assert dict(library.describe("devices"))["T4"] == "16 GB, 65 TFLOP/s float16, $0.526/h"


@pytest.mark.parametrize("kind", ["clusters", "models"])
def test_an_empty_name_is_not_the_folder_that_one_is_in(kind: str) -> None:
    with pytest.raises(HeterpsError, match=f"the name is empty; `heterps list {kind}` shows some"):
        library.load(kind, "")


@pytest.mark.parametrize(("name", "file"), [("T4", "nvidia-data-center"), ("fast", "efforts")])
def test_an_entry_of_a_file_is_no_file_to_copy(tmp_path: Path, name: str, file: str) -> None:
    with pytest.raises(HeterpsError, match=f"is an entry of a file of .*{file}"):
        library.copy(name, tmp_path)
