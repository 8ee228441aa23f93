"""Bounds of all plans with less work than a user's have: most tests are not about them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from heterps_envs.step_bounds import question

# Of the work of a proof.
PART = 10


@pytest.fixture(autouse=True, scope="module")
def short_proofs() -> Iterator[None]:
    """A tenth of it: bounds hold as they do with all of it, and some are lower.

    Of one file at a time: others, that are about bounds, come after it.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(question, "MOST_WORK", question.MOST_WORK // PART)
        patch.setattr(question, "MOST_WORK_IN_ALL", question.MOST_WORK_IN_ALL // PART)
        yield
