"""The training split: what is taken from published runs, always without the run that is predicted.

Two things are not in profiles, links or data sheets. Neither is fitted on a step time or a peak of
the row that it is used for:

* Bandwidth between nodes in training. The link tables come from a benchmark that sends in one
  direction with nothing else to do. The runs also log the seconds of their gradient all-reduce; its
  ratio to the ring over the links as benchmarked is what a run reaches of them. For a run it is the
  median over the *other* runs of its cluster in which replicas of one GPU type reduce (elsewhere
  the logged time is mostly the wait for the slower GPUs), and at most 1; where there are none, 1.
* Whether a reported peak holds the activations. The runs on two GPUs a node in the mixed cluster
  report less than the activations alone that the profile says are saved, others of that cluster
  hold them. For a run, the reading is the one that explains the *other* runs of its cluster with
  the same tensor-parallel degree better; where there are none, the peak.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from heterps_configs.importers.sailor_runs import SailorRun, SailorTraining
from heterps_envs.engines.megatron_memory import Reading, predicted_memory_bytes
from heterps_envs.engines.megatron_runs import MegatronSetting, reduce_s

READINGS: tuple[Reading, ...] = ("peak", "state")


class NamedRun(NamedTuple):
    """A run of a cluster and the name of its file."""

    name: str
    run: SailorRun


def bandwidth_share(
    setting: MegatronSetting, runs: Sequence[NamedRun], without: str
) -> tuple[float, tuple[str, ...]]:
    """What a run reaches of the bandwidth between nodes, and the runs that this was taken from."""
    as_benchmarked = replace(setting, bandwidth_share=1.0)
    shares = {}
    for name, run in runs:
        groups = run.plan.stages[0].groups
        if name == without or len(groups) == 1 or not run.measured_reduce_s:
            continue
        if len({group.gpu for stage in run.plan.stages for group in stage.groups}) == 1:
            shares[name] = reduce_s(as_benchmarked, run.plan.stages[0]) / run.measured_reduce_s
    if not shares:
        return 1.0, ()
    return min(1.0, statistics.median(shares.values())), tuple(shares)


def memory_reading(
    setting: MegatronSetting, training: SailorTraining, runs: Sequence[NamedRun], without: str
) -> tuple[Reading, tuple[str, ...]]:
    """What the reported memory of a run holds, and the runs that this was taken from."""
    degree = next(_degree(run) for name, run in runs if name == without)
    others = [(name, run) for name, run in runs if name != without and _degree(run) == degree]
    if not others:
        return READINGS[0], ()
    errors: Mapping[Reading, float] = {
        reading: statistics.mean(
            abs(
                predicted_memory_bytes(setting.model, run.plan, training, reading)
                / run.measured_memory_bytes
                - 1
            )
            for _, run in others
        )
        for reading in READINGS
    }
    return min(READINGS, key=lambda reading: errors[reading]), tuple(name for name, _ in others)


def _degree(run: SailorRun) -> int:
    return run.plan.stages[0].groups[0].tensor_parallel
