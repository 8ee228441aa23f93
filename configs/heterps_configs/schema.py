"""JSON schemas of all documents, for editors that complete and check YAML."""

from __future__ import annotations

import json
import os
from pathlib import Path

from heterps_configs.documents.base import Document
from heterps_configs.documents.cluster import Cluster
from heterps_configs.documents.device import DeviceCatalogue
from heterps_configs.documents.effort import EffortTable
from heterps_configs.documents.estimate import Estimate
from heterps_configs.documents.job import Job
from heterps_configs.documents.link_kinds import LinkKinds
from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.documents.plan import Plan
from heterps_configs.documents.run_events import RunEvents
from heterps_configs.documents.run_settings import RunSettings
from heterps_configs.documents.training import ChainTrainingConfig, GraphTrainingConfig
from heterps_configs.documents.yaml_files import write_text

DOCUMENTS: dict[str, type[Document]] = {
    "cluster": Cluster,
    "device-catalogue": DeviceCatalogue,
    "efforts": EffortTable,
    "estimate": Estimate,
    "graph-training-config": GraphTrainingConfig,
    "job": Job,
    "link-kinds": LinkKinds,
    "model-profile": ModelProfile,
    "plan": Plan,
    "run-events": RunEvents,
    "run-settings": RunSettings,
    "training-config": ChainTrainingConfig,
}


def export_schemas(folder: str | os.PathLike[str]) -> tuple[Path, ...]:
    """Writes `NAME.schema.json` for every document (JSON Schema 2020-12) and returns the paths.

    Raises:
        HeterpsError: The folder cannot be written.
    """
    paths = []
    for name, document in DOCUMENTS.items():
        path = Path(folder) / f"{name}.schema.json"
        schema = {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            **document.model_json_schema(),
        }
        write_text(path, json.dumps(schema, indent=2) + "\n")
        paths.append(path)
    return tuple(paths)
