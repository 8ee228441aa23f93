"""Run settings: the shipped file names every field, and says what is wrong with others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from heterps_configs import library
from heterps_configs.documents.base import Document
from heterps_configs.documents.run_settings import CheckpointSettings, RunSettings
from heterps_configs.documents.yaml_files import read_yaml
from heterps_configs.errors import DocumentError, HeterpsError

SHIPPED = Path(str(library.find("settings", "run-settings")))


def paths_of(document: Document, before: str = "") -> Iterator[str]:
    """Dotted paths of all fields."""
    for name in type(document).model_fields:
        value = getattr(document, name)
        if isinstance(value, Document):
            yield from paths_of(value, f"{before}{name}.")
        else:
            yield f"{before}{name}"


def test_the_shipped_file_has_every_field_with_its_default() -> None:
    data = read_yaml(SHIPPED)
    parts = {name for name, value in data.items() if isinstance(value, dict)}
    assert parts == {"checkpoint", "online", "elastic"}
    written = [name for name in data if name not in parts]
    written += [f"{part}.{name}" for part in parts for name in data[part]]
    assert sorted(written) == sorted(paths_of(RunSettings()))
    shipped = library.load_run_settings("run-settings")
    assert shipped.changed(description="") == RunSettings()


def test_the_shipped_file_explains_every_field() -> None:
    lines = SHIPPED.read_text().splitlines()
    fields = [i for i, line in enumerate(lines) if ": " in line and "#" not in line]
    assert [lines[i] for i in fields if not lines[i - 1].strip().startswith("#")] == [lines[0]]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("heartbeat_s: 2", "heartbeat_s: unknown field"),
        ("elastic: {heartbeat_s: 0.1}", "elastic.heartbeat_s: must be at least 0.3"),
        ("elastic: {heartbeats: 2}", "did you mean 'heartbeat_s'?"),
        ("learning_rate: .inf", "learning_rate: must be a finite number"),
        ("max_gradient_norm: 0", "max_gradient_norm: must be greater than 0"),
        ("engine: megatron", "engine: must be 'heterps' or 'torch'"),
        ("device: gpu", "device: must be 'auto', 'cpu' or 'cuda'"),
        ("online: {effort: much}", "online.effort: must be 'fast', 'normal' or 'high'"),
        ("steps: 0", "steps: must be greater than 0"),
    ],
)
def test_a_bad_setting_is_named_with_what_is_allowed(
    text: str, expected: str, tmp_path: Path
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text + "\n")
    with pytest.raises(DocumentError) as caught:
        library.load_run_settings(path)
    assert expected in str(caught.value)
    assert str(path) in str(caught.value)


def test_nothing_is_saved_without_a_folder() -> None:
    assert RunSettings().saving is None
    saving = RunSettings(checkpoint=CheckpointSettings(folder="saved", every=3)).saving
    assert saving == CheckpointSettings(folder="saved", every=3)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (RunSettings(resume=True), "--resume: needs --checkpoint FOLDER"),
        (RunSettings(checkpoint=CheckpointSettings(every=3)), "checkpoint.every 3: needs"),
        (RunSettings(checkpoint=CheckpointSettings(remote="s3://a")), "checkpoint.remote s3://a"),
    ],
)
def test_what_needs_a_folder_says_so(settings: RunSettings, expected: str) -> None:
    with pytest.raises(HeterpsError, match=expected):
        _ = settings.saving
