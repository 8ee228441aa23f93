"""Finds Sailor's files in a folder: profiles, links, training configurations and measured runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.fidelity.published_split import NamedRun
from heterps_configs.errors import HeterpsError
from heterps_configs.importers import sailor
from heterps_configs.importers.json_entry import Entry
from heterps_configs.importers.sailor_runs import SailorTraining, load_run, load_training
from heterps_envs.engines.megatron_memory import predicted_memory_bytes
from heterps_envs.engines.megatron_runs import MegatronSetting, predicted_step_s

# Runs whose folder names no other model are of this one.
MODEL = "OPT-350"


class RunGroup(NamedTuple):
    """The runs of one model on one cluster.

    Attributes:
        skipped: Why some files are no runs that can be predicted, by name.
    """

    cluster: str
    model: str
    setting: MegatronSetting
    training: SailorTraining
    runs: Sequence[NamedRun]
    skipped: dict[str, str]


def run_groups(folder: Path) -> Iterator[RunGroup]:
    """All groups of measured runs below Sailor's folder; names of clusters are those of folders.

    Raises:
        HeterpsError: Profiles, links or the training configuration of a group are missing.
    """
    simulations = folder / "Planner" / "simulations"
    models = set(Entry.from_json(simulations / "profiles_tmp.json").mapping())
    validation = simulations / "validation"
    files: dict[tuple[str, str], list[Path]] = {}
    for file in sorted(validation.rglob("*.json")):
        cluster, *inner = file.relative_to(validation).parts
        model = next((part for part in inner if part in models), MODEL)
        files.setdefault((cluster, model), []).append(file)
    for (cluster, model), members in files.items():
        setting, training = load_setting(folder, model), _training(simulations / "configs", model)
        runs, skipped = _runs(setting, training, members)
        yield RunGroup(cluster, model, setting, training, runs, skipped)


def load_setting(folder: Path, model: str = MODEL) -> MegatronSetting:
    """Profiles and links as Sailor's repository has them, without any split.

    Raises:
        HeterpsError: A file is missing or malformed.
    """
    return MegatronSetting(
        sailor.load_model(
            folder / "Planner" / "simulations" / "profiles_tmp.json",
            folder / "Planner" / "llm_info.json",
            model,
        ),
        sailor.load_links(folder / "providers" / "multizone_bandwidths_het.json"),
        sailor.load_intra_node_links(folder / "providers" / "intra_node_bandwidths.json"),
    )


def _training(folder: Path, model: str) -> SailorTraining:
    for file in sorted(folder.glob("training_config_*.json")):
        if Entry.from_json(file)["model"].text() == model:
            return load_training(file)
    raise HeterpsError(f"{folder}: no training_config_*.json is of the model {model!r}")


def _runs(
    setting: MegatronSetting, training: SailorTraining, files: Sequence[Path]
) -> tuple[list[NamedRun], dict[str, str]]:
    """The runs that can be predicted, and why others cannot."""
    runs, skipped = [], {}
    for file in files:
        name = file.stem.removeprefix("plan_config_")
        try:
            run = load_run(file)
            predicted_step_s(setting, run.plan)
            predicted_memory_bytes(setting.model, run.plan, training)
        except HeterpsError as error:
            skipped[name] = str(error)
        else:
            runs.append(NamedRun(name, run))
    return runs, skipped
