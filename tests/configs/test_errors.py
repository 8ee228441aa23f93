"""Messages that a user reads."""

import copy
import pickle
from collections.abc import Callable

import pytest

from heterps_configs.errors import (
    MAX_SHOWN_PROBLEMS,
    DocumentError,
    HeterpsError,
    InfeasibleError,
    PlanMismatchError,
    UnknownNameError,
)


@pytest.mark.parametrize(
    "error", [DocumentError, InfeasibleError, PlanMismatchError, UnknownNameError]
)
def test_every_error_of_a_user_is_of_one_family(error: type[Exception]) -> None:
    assert issubclass(error, HeterpsError)


def test_an_unknown_name_suggests_near_ones_whatever_the_case() -> None:
    error = UnknownNameError("device type", "a100-40g", ["T4", "A100-40G", "A100-80G"])
    assert str(error).startswith("unknown device type 'a100-40g'; did you mean A100-40G")


def test_names_that_start_alike_are_suggested_first() -> None:
    error = UnknownNameError("device type", "A100", ["P100", "A10G", "A100-40G", "A100-80G"])
    assert "did you mean A100-40G, A100-80G," in str(error)


def test_a_name_without_near_ones_lists_what_is_known() -> None:
    error = UnknownNameError("planner", "zzz", ["greedy", "exact"], hint="(see the README)")
    assert str(error) == "unknown planner 'zzz'; known: exact, greedy (see the README)"


def test_a_document_error_shows_many_problems_but_keeps_all() -> None:
    error = DocumentError("file.yaml", [f"field.{i}: is missing" for i in range(100)])
    assert len(error.problems) == 100
    assert str(error).endswith(f"and {100 - MAX_SHOWN_PROBLEMS} problems more")
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e))]
)
@pytest.mark.parametrize(
    "error",
    [
        DocumentError("file.yaml", ["field: is missing"]),
        UnknownNameError("planner", "exat", ["greedy", "exact"], hint="(see the README)"),
        InfeasibleError("nothing fits", 0.5),
    ],
)
def test_errors_can_be_copied_and_sent_to_other_processes(
    copied: Callable[[HeterpsError], HeterpsError], error: HeterpsError
) -> None:
    again = copied(error)
    assert type(again) is type(error)
    assert (str(again), vars(again)) == (str(error), vars(error))


def test_a_long_name_is_shown_without_its_middle() -> None:
    assert len(str(UnknownNameError("planner", "a" * 5000, ("auto",)))) < 300
