"""Runs that others measured and published: predicted step time and peak memory, beside peers.

    python benchmarks/fidelity/fidelity.py --workloads FOLDER --only published

OPT-350M in Megatron-DeepSpeed on GH200 (`clariden`) and on a mix of RTX 2080, RTX 3090 and Titan
RTX (`mit`): Sailor's measured runs, predicted from its per-layer profiles and link fits. Nothing is
fitted on the value that is scored. `published_split` says what is taken from other runs of the same
cluster, leaving out the one that is predicted; `without split` are the errors with nothing taken.
`card_times` are those of step times without the model's profile (`published_cards`).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.fidelity.published_cards import with_card_times
from benchmarks.fidelity.published_files import MODEL, RunGroup, run_groups
from benchmarks.fidelity.published_peers import PEERS, PeerPredictions, peer_predictions
from benchmarks.fidelity.published_split import READINGS, bandwidth_share, memory_reading
from heterps_configs.errors import HeterpsError
from heterps_envs.engines.megatron_memory import predicted_memory_bytes
from heterps_envs.engines.megatron_runs import MegatronSetting, predicted_step_s

Row = dict[str, Any]
# What a cluster is called in the summary.
LABELS = {"clariden": "gh200", "mit": "rtx_mix"}
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
    table: list[Row] = []
    summary: dict[str, Any] = {}
    for group in run_groups(workloads / "sailor"):
        by_cards = with_card_times(group.setting, group.runs, workloads)
        label = LABELS.get(group.cluster, group.cluster)
        label += "" if group.model == MODEL else f"_{group.model}"
        summary |= {
            f"published_{label}_{name}_skipped": reason for name, reason in group.skipped.items()
        }
        for quantity, chosen in (
            ("step time", list(_step_rows(group, by_cards))),
            ("peak memory", list(_memory_rows(group))),
        ):
            if chosen:
                mean = _mean_row(group.cluster, quantity, chosen)
                table += [*chosen, mean]
                key = f"published_{label}_{quantity.replace(' ', '_')}"
                summary |= _summary(key, mean, chosen)
    if not table:
        raise HeterpsError(f"{workloads}: holds no runs of Sailor's that can be predicted")
    summary |= {f"provenance of {key}": text for key, text in PROVENANCE.items()}
    return table, summary


def _step_rows(group: RunGroup, by_cards: MegatronSetting | None) -> Iterator[Row]:
    for name, run in group.runs:
        share, others = bandwidth_share(group.setting, group.runs, name)
        seconds, plain_s = (
            predicted_step_s(replace(group.setting, bandwidth_share=chosen), run.plan)
            for chosen in (share, 1.0)
        )
        split = f"bandwidth x {share:.3g}, {len(others)} runs"
        peers = _peers_of(group, name).step_s
        row = _row(
            group.cluster, name, "step time, s", run.measured_s, seconds, plain_s, split, peers
        )
        if by_cards is not None:
            estimated_s = predicted_step_s(replace(by_cards, bandwidth_share=share), run.plan)
            row["card_times_error"] = estimated_s / run.measured_s - 1
        yield row


def _memory_rows(group: RunGroup) -> Iterator[Row]:
    setting, training = group.setting, group.training
    for name, run in group.runs:
        reading, others = memory_reading(setting, training, group.runs, name)
        gigabytes, plain_gb = (
            predicted_memory_bytes(setting.model, run.plan, training, chosen) / 1e9
            for chosen in (reading, READINGS[0])
        )
        measured_gb = run.measured_memory_bytes / 1e9
        split = f"{reading}, {len(others)} runs"
        peers = _peers_of(group, name).memory_gb
        yield _row(
            group.cluster, name, "peak memory, GB", measured_gb, gigabytes, plain_gb, split, peers
        )


def _peers_of(group: RunGroup, name: str) -> PeerPredictions:
    """What peers say of a run; they were asked about one model."""
    return peer_predictions(group.cluster if group.model == MODEL else "", name)


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
    columns = ("ours_error", *(f"{peer}_error" for peer in PEERS), "without_split_error")
    for column in (*columns, "card_times_error"):
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
    if "card_times_error" in mean:
        summary[f"{key}_mean_error_with_card_times"] = mean["card_times_error"]
    if peers:
        best = min(peers, key=lambda peer: peers[peer])
        same_rows = [abs(row["ours_error"]) for row in chosen if f"{best}_error" in row]
        summary[f"{key}_best_peer"] = f"{peers[best]:.4f} ({best})"
        summary[f"{key}_beats_every_peer"] = statistics.mean(same_rows) < peers[best]
    return summary
