"""Runs that others measured and published: predicted step time and peak memory, beside peers.

    python benchmarks/fidelity.py --workloads FOLDER --only published

OPT-350M in Megatron-DeepSpeed on GH200 (`clariden`) and on a mix of RTX 2080, RTX 3090 and Titan
RTX (`mit`): Sailor's measured runs, predicted from its per-layer profiles and link fits. Nothing is
fitted on the value that is scored. `published_split` says what is taken from other runs of the same
cluster, leaving out the one that is predicted; `without split` are the errors with nothing taken.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.fidelity_sections.published_peers import PEERS, peer_predictions
from benchmarks.fidelity_sections.published_split import (
    READINGS,
    NamedRun,
    bandwidth_share,
    memory_reading,
)
from heterps_configs.errors import HeterpsError
from heterps_configs.importers import sailor
from heterps_configs.importers.sailor_runs import SailorTraining, load_run, load_training
from heterps_envs.megatron_memory import predicted_memory_bytes
from heterps_envs.megatron_runs import MegatronSetting, predicted_step_s

Row = dict[str, Any]
MODEL = "OPT-350"
GROUPS = {"clariden": "gh200", "mit": "rtx_mix"}
PROVENANCE = {
    "layer seconds": "Sailor's profiles (sailor_times: least over larger micro-batches, gradient "
    "accumulation at the data sheet's memory bandwidth, optimizer by parameters)",
    "links": "Sailor's fits, all GPUs of a group together, at most what was measured",
    "order of messages": "DeepSpeed's TrainSchedule (deepspeed_order)",
    "message buffers": "NCCL's defaults: 2 channels x 8 steps x 128 KiB for each GPU",
    "bandwidth share": "gradient all-reduce seconds of the other runs, leave one out; no step time",
    "memory": "float32 Adam 16 B a parameter, profiled activations, 2 score matrices, context and "
    "kernels of Sailor's simulator scaled by resident threads (data sheets)",
    "memory reading": "peak or after a step, by the other runs of the same degree, leave one out",
}


def rows(workloads: Path | None, quick: bool, seed: int) -> tuple[list[Row], dict[str, Any]]:
    """One row for each measured run and quantity; it takes seconds, and nothing is drawn.

    Raises:
        HeterpsError: There is no folder of published files, or Sailor's are not in it.
    """
    del quick, seed
    if workloads is None:
        raise HeterpsError("name the folder of published files with --workloads")
    folder = workloads / "sailor"
    simulations = folder / "Planner" / "simulations"
    setting = load_setting(folder)
    training = load_training(simulations / "configs" / "training_config_opt_350.json")
    table: list[Row] = []
    summary: dict[str, Any] = {}
    for cluster, group in GROUPS.items():
        runs, skipped = _runs(simulations / "validation" / cluster)
        summary |= {f"published_{group}_{name}_skipped": reason for name, reason in skipped.items()}
        for quantity, predict in (("step time", _step_rows), ("peak memory", _memory_rows)):
            chosen = list(predict(setting, training, cluster, runs))
            if chosen:
                mean = _mean_row(cluster, quantity, chosen)
                table += [*chosen, mean]
                key = f"published_{group}_{quantity.replace(' ', '_')}"
                summary |= _summary(key, mean, chosen)
    summary |= {f"provenance of {key}": text for key, text in PROVENANCE.items()}
    return table, summary


def load_setting(folder: Path) -> MegatronSetting:
    """Profiles and links as Sailor's repository has them, without any split.

    Raises:
        HeterpsError: A file is missing or malformed.
    """
    return MegatronSetting(
        sailor.load_model(
            folder / "Planner" / "simulations" / "profiles_tmp.json",
            folder / "Planner" / "llm_info.json",
            MODEL,
        ),
        sailor.load_links(folder / "providers" / "multizone_bandwidths_het.json"),
        sailor.load_intra_node_links(folder / "providers" / "intra_node_bandwidths.json"),
    )


def _runs(folder: Path) -> tuple[list[NamedRun], dict[str, str]]:
    """The runs of a cluster, and why some of its files are no runs of ours."""
    runs, skipped = [], {}
    for file in sorted(folder.rglob("*.json")):
        name = file.stem.removeprefix("plan_config_")
        try:
            runs.append(NamedRun(name, load_run(file)))
        except HeterpsError as error:
            skipped[name] = str(error)
    return runs, skipped


def _step_rows(
    setting: MegatronSetting, training: SailorTraining, cluster: str, runs: Sequence[NamedRun]
) -> Iterator[Row]:
    del training
    for name, run in runs:
        share, others = bandwidth_share(setting, runs, name)
        seconds, plain_s = (
            predicted_step_s(replace(setting, bandwidth_share=chosen), run.plan)
            for chosen in (share, 1.0)
        )
        split = f"bandwidth x {share:.3g}, {len(others)} runs"
        peers = peer_predictions(cluster, name).step_s
        yield _row(cluster, name, "step time, s", run.measured_s, seconds, plain_s, split, peers)


def _memory_rows(
    setting: MegatronSetting, training: SailorTraining, cluster: str, runs: Sequence[NamedRun]
) -> Iterator[Row]:
    for name, run in runs:
        reading, others = memory_reading(setting, training, runs, name)
        gigabytes, plain_gb = (
            predicted_memory_bytes(setting.model, run.plan, training, chosen) / 1e9
            for chosen in (reading, READINGS[0])
        )
        measured_gb = run.measured_memory_bytes / 1e9
        split = f"{reading}, {len(others)} runs"
        peers = peer_predictions(cluster, name).memory_gb
        yield _row(cluster, name, "peak memory, GB", measured_gb, gigabytes, plain_gb, split, peers)


def _row(
    cluster: str,
    name: str,
    quantity: str,
    measured: float,
    ours: float,
    without_split: float,
    split: str,
    peers: Mapping[str, float],
) -> Row:
    """One prediction; errors are signed, relative to what was measured."""
    return {
        "cluster": cluster,
        "run": name,
        "quantity": quantity,
        "measured": measured,
        "ours": ours,
        "ours_error": ours / measured - 1,
        **{f"{peer}_error": value / measured - 1 for peer, value in peers.items()},
        "without_split_error": without_split / measured - 1,
        "split": split,
    }


def _mean_row(cluster: str, quantity: str, chosen: Sequence[Row]) -> Row:
    """Mean absolute errors of a group; of a peer over the rows that it was asked about."""
    mean: Row = {"cluster": cluster, "run": f"mean of {len(chosen)}", "quantity": quantity}
    for column in ("ours_error", *(f"{peer}_error" for peer in PEERS), "without_split_error"):
        errors = [abs(row[column]) for row in chosen if column in row]
        if errors:
            mean[column] = statistics.mean(errors)
    return mean


def _summary(key: str, mean: Row, chosen: Sequence[Row]) -> dict[str, Any]:
    """Our mean, the best peer's, and whether ours is lower than every peer's on the same rows."""
    peers = {peer: mean[f"{peer}_error"] for peer in PEERS if f"{peer}_error" in mean}
    worst = max(chosen, key=lambda row: abs(row["ours_error"]))
    summary: dict[str, Any] = {
        f"{key}_mean_error": mean["ours_error"],
        f"{key}_mean_error_without_split": mean["without_split_error"],
        f"{key}_worst_error": f"{worst['ours_error']:+.3f} ({worst['run']})",
    }
    if peers:
        best = min(peers, key=lambda peer: peers[peer])
        summary[f"{key}_best_peer"] = f"{peers[best]:.4f} ({best})"
        summary[f"{key}_beats_every_peer"] = mean["ours_error"] < peers[best]
    return summary
