"""The published half of the fidelity benchmark, on small files and on the real ones if at hand."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from benchmarks.fidelity import published
from benchmarks.fidelity.published_files import MODEL, load_setting
from benchmarks.fidelity.published_peers import PEERS, peer_predictions
from benchmarks.fidelity.published_split import NamedRun, bandwidth_share, memory_reading
from heterps.calibration.megatron_model import traced_megatron
from heterps.calibration.sailor_blocks import SAILOR, SHAPES
from heterps_configs.documents.device import device_type_named
from heterps_configs.documents.job import Job
from heterps_configs.errors import HeterpsError
from heterps_configs.importers.sailor_runs import load_run, load_training
from heterps_envs.card_times.document import shipped_calibration
from heterps_envs.card_times.formula import card_seconds

GPUS = {"clariden": "GH-96", "mit": "RTX-3090"}
NUM_LAYERS = 4
PAIR = [[0.0, 0.0, 1.0], 1e12]


def write(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def run_of(gpu: str, replicas: int, *, real: float, memory: float, reduce_s: float) -> Any:
    """One stage on one GPU for each replica, two micro-batches each."""
    group = [[[gpu, 1, "here"]], 1]
    pipeline = {
        "num_stages": 1,
        "layers_per_stage": [list(range(NUM_LAYERS))],
        "tmp_per_stage": [[group] * replicas],
        "dp": [replicas],
    }
    return {
        "pipeline_list": [pipeline],
        "mbs": 1,
        "gbs": 2 * replicas,
        "real": real,
        "max_mem": memory,
        "red_grads": reduce_s,
    }


@pytest.fixture
def workloads(tmp_path: Path) -> Path:
    """Files as Sailor's, with two runs on each of two clusters and one that cannot be read."""
    sailor = tmp_path / "sailor"
    simulations, providers = sailor / "Planner" / "simulations", sailor / "providers"
    layers = {str(index): [1.0, 2.0, 0.0] for index in range(NUM_LAYERS)}
    profiles = {gpu: {"1": {"1": layers}} for gpu in GPUS.values()}
    write(simulations / "profiles_tmp.json", {MODEL: profiles})
    size = {"params_floats": 10**6, "act_output_floats": 10**6, "act_mem_floats": 10**9}
    sizes = {"1": {str(index): size for index in range(NUM_LAYERS)}}
    write(sailor / "Planner" / "llm_info.json", {MODEL: sizes})
    here = {gpu: {"1": PAIR} for gpu in GPUS.values()}
    ends = {gpu: {"1": {"here": here}} for gpu in GPUS.values()}
    write(providers / "multizone_bandwidths_het.json", {"here": ends})
    write(providers / "intra_node_bandwidths.json", {})
    training = {"heads": 2, "sequence_length": 64, "model": MODEL}
    write(simulations / "configs" / "training_config_opt_350.json", training)
    for cluster, gpu in GPUS.items():
        folder = simulations / "validation" / cluster
        for name, replicas in (("N1_D1", 1), ("N2_D2", 2)):
            content = run_of(gpu, replicas, real=24.0, memory=20e9, reduce_s=0.032)
            write(folder / f"plan_config_{name}.json", content)
    write(simulations / "validation" / "mit" / "plan_config_odd.json", {"mbs": 1})
    return tmp_path


def test_every_run_has_a_row_for_each_quantity_and_a_mean_below(workloads: Path) -> None:
    rows, summary = published.rows(workloads, quick=True, seed=0)
    assert [row["run"] for row in rows] == ["N1_D1", "N2_D2", "mean of 2"] * 4
    first = rows[0]
    assert first["ours"] == pytest.approx(24.0, rel=1e-3)
    assert first["ours_error"] == pytest.approx(0.0, abs=1e-3)
    # Nobody asked the peers about a run of this name, but they were about the next one.
    assert "Sailor_error" not in first
    assert rows[1]["Sailor_error"] == pytest.approx(0.727 / 24 - 1)
    assert summary["published_gh200_step_time_mean_error"] < 0.01
    assert summary["published_gh200_step_time_beats_every_peer"] is True
    assert "published_rtx_mix_odd_skipped" in summary
    assert "provenance of links" in summary


def test_card_times_take_nothing_from_the_profile_of_the_model(workloads: Path) -> None:
    file = workloads / SAILOR
    content = json.loads(file.read_text())
    shape, entry = SHAPES["GPT-Neo-2.7"], device_type_named("GH200-96G")
    profile = traced_megatron(shape)
    sizes = ("1", "4", "16")
    for size in sizes:
        job = Job(global_batch_size=int(size), micro_batch_size=int(size), dtype="tf32")
        seconds = card_seconds(shipped_calibration(), profile, entry, job)
        block = [float(seconds.forward_s[1]), float(seconds.backward_s[1]), 0.0]
        layers = {str(index): block for index in range(NUM_LAYERS)}
        content.setdefault("GPT-Neo-2.7", {}).setdefault("GH-96", {})[size] = {"1": layers}
    folder = workloads / "sailor" / "Planner"
    known = json.loads((folder / "llm_info.json").read_text())
    write(folder / "llm_info.json", {**known, "GPT-Neo-2.7": known[MODEL]})
    write(file, content)
    rows, summary = published.rows(workloads, quick=True, seed=0)
    assert rows[0]["ours"] == pytest.approx(24.0, rel=1e-3)
    # A block takes milliseconds, where its profile says seconds.
    assert rows[0]["card_times_error"] < -0.9
    assert summary["published_gh200_step_time_mean_error_with_card_times"] > 0.9
    assert "card_times_error" not in rows[3]


def test_nothing_is_taken_from_the_run_that_is_predicted(workloads: Path) -> None:
    """A ring of 16 MB over 1 GB/s takes 16 ms; the run that logs 32 ms says half the bandwidth."""
    rows, _ = published.rows(workloads, quick=True, seed=0)
    alone, pair = (row["split"] for row in rows[:2])
    assert alone == "bandwidth x 0.5, 1 runs"
    assert pair == "bandwidth x 1, 0 runs"


def test_the_reading_of_memory_is_that_of_the_other_runs(workloads: Path) -> None:
    folder = workloads / "sailor" / "Planner" / "simulations"
    setting = load_setting(workloads / "sailor")
    training = load_training(folder / "configs" / "training_config_opt_350.json")
    files = sorted((folder / "validation" / "clariden").glob("*.json"))
    runs = [NamedRun(file.stem, load_run(file)) for file in files]
    assert memory_reading(setting, training, runs, runs[0].name) == ("peak", (runs[1].name,))
    small = [entry._replace(run=entry.run._replace(measured_memory_bytes=5e9)) for entry in runs]
    assert memory_reading(setting, training, small, runs[0].name) == ("state", (runs[1].name,))
    assert memory_reading(setting, training, runs[:1], runs[0].name) == ("peak", ())
    assert bandwidth_share(setting, runs, runs[1].name) == (1.0, ())


def test_without_files_the_section_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(HeterpsError, match="--workloads"):
        published.rows(None, quick=False, seed=0)
    with pytest.raises(HeterpsError, match="profiles_tmp"):
        published.rows(tmp_path, quick=False, seed=0)


def test_peers_have_seconds_and_gigabytes_and_amp_no_memory() -> None:
    known = peer_predictions("mit", "N6_D6")
    assert tuple(known.step_s) == PEERS
    assert tuple(known.memory_gb) == PEERS[:3]
    assert peer_predictions("mit", "N7_D7") == ({}, {})


@pytest.mark.slow
def test_on_the_published_runs_every_mean_error_is_below_the_peers() -> None:
    folder = Path(os.environ.get("HETERPS_WORKLOADS", "no folder"))
    if not (folder / "sailor").is_dir():
        pytest.skip("$HETERPS_WORKLOADS names no folder with Sailor's files")
    _, summary = published.rows(folder, quick=False, seed=0)
    for group in published.LABELS.values():
        for quantity in ("step_time", "peak_memory"):
            assert summary[f"published_{group}_{quantity}_beats_every_peer"], (group, quantity)
