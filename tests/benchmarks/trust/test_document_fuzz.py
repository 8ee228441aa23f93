"""200 broken documents: each gets one line and exit code 2, or an answer, and leaves nothing."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.trust.broken_documents import from_schema
from benchmarks.trust.document_fuzz import fuzz, rows
from benchmarks.trust.fuzz_kinds import KINDS
from heterps_configs.documents.run_settings import RunSettings

# A config of Hugging Face imports transformers, which takes longer than all other files.
QUICK = tuple(name for name in KINDS if name != "huggingface")


@pytest.mark.slow
@pytest.mark.parametrize("kind", QUICK)
def test_broken_documents_are_refused_in_one_line(kind: str) -> None:
    outcome = fuzz(200 // len(QUICK), number=1, only=(kind,))
    assert outcome.findings == []
    (row,) = rows(outcome)
    assert row["files"] >= 200 // len(QUICK)
    assert row["refused"] > 0


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_documents_of_a_schema_have_its_fields(data: st.DataObject) -> None:
    drawn = data.draw(from_schema(RunSettings.model_json_schema()))
    assert set(drawn) <= set(RunSettings.model_fields)
