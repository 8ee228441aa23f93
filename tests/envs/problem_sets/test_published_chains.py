"""Published files become chains: small ones made here, and the real ones where they are at hand."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heterps_envs.closed_form.bounds import price_bound
from heterps_envs.problem_sets.published_chains import published_chains

# A fit of the bandwidth in GB/s: constant.
TEN_GIGABYTES = [[0.0, 0.0, 10.0], 2e10]
ZONE = "us-central1-a"
GPUS = ("A100-40", "V100-16")


def write(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def sailor_folder(folder: Path, activation: int = 10**6) -> Path:
    """Two types, three layers, degrees 1 and 2; the V100 takes three times as long."""
    simulations = folder / "Planner" / "simulations"
    seconds = {"A100-40": 0.01, "V100-16": 0.03}
    times = {
        gpu: {
            size: {
                degree: {str(layer): [value, 2 * value, value / 10] for layer in range(3)}
                for degree in ("1", "2")
            }
            for size in ("1", "4", "16")
        }
        for gpu, value in seconds.items()
    }
    write(simulations / "profiles_tmp.json", {"tiny": times})
    layer = {"params_floats": 10**6, "act_output_floats": 10**5, "act_mem_floats": activation}
    halved = layer | {"params_floats": 5 * 10**5, "act_mem_floats": activation // 2}
    sizes = {
        degree: {str(index): entry for index in range(3)}
        for degree, entry in (("1", layer), ("2", halved))
    }
    write(folder / "Planner" / "llm_info.json", {"tiny": sizes})
    ends = {gpu: {"1": TEN_GIGABYTES, "2": TEN_GIGABYTES} for gpu in GPUS}
    table = {gpu: {count: {ZONE: ends} for count in ("1", "2")} for gpu in GPUS}
    write(folder / "providers" / "multizone_bandwidths_het.json", {ZONE: table})
    inside = {gpu: {"2": [[0.0, 0.0, 100.0], 2e11], "4": TEN_GIGABYTES} for gpu in GPUS}
    write(folder / "providers" / "intra_node_bandwidths.json", inside)
    nodes = {gpu: {"gpus_per_node": 4, "mem_per_gpu": 16 * 10**9} for gpu in GPUS}
    configs = simulations / "configs"
    write(configs / "basic_cluster_config.json", {"zone": ZONE, **nodes})
    write(configs / "training_config_tiny.json", {"model": "tiny", "global_batch_size": 30})
    trace = f",Timestamp,A100-40_{ZONE},V100-16_{ZONE}\n0,1.5,8,16\n1,2.5,80,160\n"
    (configs / "gpu_trace_small.csv").write_text(trace)
    return folder


def test_a_sailor_model_meets_clusters_whose_types_were_measured(tmp_path: Path) -> None:
    sailor_folder(tmp_path / "sailor")
    found = published_chains(tmp_path)
    tables = {entry.name: entry.tables for entry in found.problems}
    assert set(tables) == {
        "Sailor tiny, 1 A100 + 2 V100",
        "Sailor tiny, 8 A100 + 8 V100",
        "Sailor tiny, small",
    }
    assert "not measured" in found.left_out["Sailor tiny, 3 unequal RTX"]
    small = tables["Sailor tiny, small"]
    # Micro-batches of 4, the largest that is taken: 30 samples make 8 of them.
    assert small.num_micro_batches == 8
    assert list(small.device_count) == [8, 16]
    np.testing.assert_allclose(small.forward_s, [[0.01, 0.03]] * 3)
    np.testing.assert_allclose(small.state_bytes, 24e6)
    np.testing.assert_allclose(small.activation_bytes, 16e6)
    np.testing.assert_allclose(small.output_bytes, [1.6e6, 1.6e6, 0])
    np.testing.assert_allclose(small.memory_bytes, 14e9)
    np.testing.assert_allclose(small.inverse_bandwidth_s_per_byte, 1e-10)


def test_devices_of_one_node_have_its_own_link(tmp_path: Path) -> None:
    sailor_folder(tmp_path / "sailor")
    found = {entry.name: entry.tables for entry in published_chains(tmp_path).problems}
    tables = found["Sailor tiny, 1 A100 + 2 V100"]
    np.testing.assert_allclose(tables.inverse_bandwidth_s_per_byte, [[0, 1e-10], [1e-10, 1e-11]])


def test_what_does_not_fit_takes_tensor_parallelism_or_is_left_out(tmp_path: Path) -> None:
    # 10 GB for each layer and sample, halved with degree 2; two stages need twice as much.
    sailor_folder(tmp_path / "sailor", activation=25 * 10**8)
    found = published_chains(tmp_path)
    tables = {entry.name: entry.tables for entry in found.problems}
    assert list(tables["Sailor tiny, small"].device_count) == [4, 8]
    assert tables["Sailor tiny, small"].num_micro_batches == 30
    assert "times the memory" in found.left_out["Sailor tiny, 1 A100 + 2 V100"]


def test_galvatron_seconds_stand_on_the_blocks_of_the_shipped_profile(tmp_path: Path) -> None:
    folder = tmp_path / "galvatron"
    # 5 ms for each layer and 3 ms for the rest, times the batch size.
    forward = {
        f"layernum[{layers}]_bsz{size}_seq2048": size * (5.0 * layers + 3.0)
        for layers in (2, 4)
        for size in (1, 4)
    }
    write(folder / "computation_profiling_bf16_llama2-7b_all.json", forward)
    for nodes in (1, 2):
        stem = f"{nodes}nodes_8gpus_per_node.json"
        write(folder / f"p2p_bandwidth_{stem}", {"pp_size_2": 8.0, "pp_size_4": 10.0})
        write(folder / f"allreduce_bandwidth_{stem}", {"allreduce_size_8_consec_1": 150.0})
    tables = {entry.name: entry.tables for entry in published_chains(tmp_path).problems}
    two = tables["Galvatron Llama 2 7B, 2 x 8, micro-batch size 1"]
    np.testing.assert_allclose(two.forward_s[1:33], 5e-3)
    np.testing.assert_allclose(two.forward_s.sum(axis=0), 0.163)
    np.testing.assert_allclose(two.backward_s, 2 * two.forward_s)
    assert list(two.device_count) == [8, 8]
    assert two.inverse_bandwidth_s_per_byte[0, 1] == pytest.approx(1 / 8e9)
    assert two.inverse_bandwidth_s_per_byte[0, 0] == pytest.approx(1 / 150e9)


def test_the_published_files_become_chains() -> None:
    """Runs where `HETERPS_WORKLOADS` names the folder of the published files."""
    folder = Path(os.environ.get("HETERPS_WORKLOADS", ""))
    if not (folder / "sailor").is_dir():
        return
    found = published_chains(folder)
    sources = {entry.name.split()[0] for entry in found.problems}
    assert sources == {"Sailor", "Galvatron", "PipeEdge", "DT-FM"}
    assert all(np.isfinite(price_bound(entry.tables)[0]) for entry in found.problems)
    assert "not measured" in found.left_out["Sailor OPT-30, 3 unequal RTX"]
