"""JSON schemas for editors."""

import json
from pathlib import Path

from heterps_configs.documents.base import Document
from heterps_configs.library import KINDS
from heterps_configs.schema import DOCUMENTS, export_schemas


def test_there_is_a_schema_for_every_document(tmp_path: Path) -> None:
    paths = export_schemas(tmp_path / "schemas")
    assert {path.name for path in paths} == {f"{name}.schema.json" for name in DOCUMENTS}
    known: set[type[Document]] = {kind.document for kind in KINDS.values() if kind.document}
    assert known <= set(DOCUMENTS.values())


def test_a_schema_names_fields_and_refuses_others(tmp_path: Path) -> None:
    export_schemas(tmp_path)
    schema = json.loads((tmp_path / "cluster.schema.json").read_text())
    group = schema["$defs"]["DeviceGroup"]
    assert group["additionalProperties"] is False
    assert set(group["required"]) == {"name", "type"}
    assert group["properties"]["count"]["minimum"] == 1
    assert schema["description"].startswith("Devices and links.")
