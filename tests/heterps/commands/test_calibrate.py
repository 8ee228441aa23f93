"""`heterps calibrate` on a small folder of published times."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from heterps.calibration.cephalo_blocks import traced_block
from heterps_configs.documents.device import device_type_named
from heterps_configs.documents.job import Job
from heterps_configs.importers.cephalo import BLOCKS, GPUS
from heterps_envs.card_times.document import CardCalibration, shipped_calibration
from heterps_envs.card_times.formula import card_factors
from heterps_envs.card_times.work import card_work, pass_seconds

Heterps = Callable[..., Any]
MODELS = ("deepspeedllama_tiny", "deepspeedllama_3b", "deepspeedgpt_1.3b")
CARDS = ("t4", "a100x40", "v100x16", "a10g")


@pytest.fixture(scope="module")
def workloads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Times that the shipped calibration predicts, a tenth above."""
    folder = tmp_path_factory.mktemp("workloads")
    (folder / "cephalo").mkdir()
    content: dict[str, object] = {
        model: {card: {"512": {"float32": _table(model, card)}} for card in CARDS}
        for model in MODELS
    }
    (folder / "cephalo" / "model_latencies.json").write_text(json.dumps(content))
    return folder


def _table(model: str, card: str) -> list[list[float]]:
    shipped, entry = shipped_calibration(), device_type_named(GPUS[card])
    layers = traced_block(BLOCKS[model], 512, "float32").layers
    forward: list[float] = []
    backward: list[float] = []
    for size in (1, 2, 3):
        job = Job(global_batch_size=size, micro_batch_size=size, dtype="float32")
        work = card_work(layers, 1.0, entry, job)
        for seconds, of, columns in (
            (forward, "forward", work.forward),
            (backward, "backward", work.backward),
        ):
            factors = card_factors(shipped, entry, of, work.units)  # type: ignore[arg-type]
            seconds.append(1100 * float(pass_seconds(factors, columns[0])))
    return [[1.0, 1.0], [1.0, 1.0], forward, backward]


@pytest.mark.slow
def test_it_fits_says_what_changed_and_writes_what_can_be_read(
    heterps: Heterps, workloads: Path, tmp_path: Path
) -> None:
    output = tmp_path / "cards.yaml"
    text = heterps("calibrate", "--workloads", workloads, "-o", output).out
    assert "36 block times (36 measured one by one" in text
    assert "of 4 cards and 3 models" in text
    assert "float32.forward.products" in text
    fitted = CardCalibration.from_file(output)
    assert set(fitted.cards) == {GPUS[card] for card in CARDS}
    assert fitted.errors["card"].median < 0.2


def test_a_folder_without_published_times_is_one_clear_error(
    heterps: Heterps, tmp_path: Path
) -> None:
    outcome = heterps("calibrate", "--workloads", tmp_path)
    assert outcome.code == 2
    assert "has neither cephalo/model_latencies.json" in " ".join(outcome.err.split())
    outcome = heterps("calibrate", "--workloads", tmp_path / "nowhere")
    assert outcome.code == 2
    assert "is no folder" in outcome.err


def test_an_output_that_cannot_be_written_and_a_file_without_known_cards_are_one_clear_error(
    heterps: Heterps, tmp_path: Path
) -> None:
    (tmp_path / "cephalo").mkdir()
    (tmp_path / "cephalo" / "model_latencies.json").write_text("{}")
    outcome = heterps("calibrate", "--workloads", tmp_path, "-o", tmp_path / "none" / "cards.yaml")
    assert outcome.code == 2
    assert "cannot be written: there is no folder" in " ".join(outcome.err.split())
    outcome = heterps("calibrate", "--workloads", tmp_path, "-o", tmp_path / "cards.yaml")
    assert outcome.code == 2
    assert "model_latencies.json: has no block times of known cards" in outcome.err
    assert not (tmp_path / "cards.yaml").exists()


@pytest.mark.parametrize(
    "name", ["cephalo/model_latencies.json", "sailor/Planner/simulations/profiles_tmp.json"]
)
def test_a_file_without_usable_times_is_named(heterps: Heterps, tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.parent.mkdir(parents=True)
    file.write_text("{}")
    (file.parent.parent / "llm_info.json").write_text("{}")
    outcome = heterps("calibrate", "--workloads", tmp_path)
    assert outcome.code == 2
    assert f"{file}: has no block times" in outcome.err
