"""What is sent to a process of its own while other threads go on."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from heterps_agents.interface.background import pickled


class _Learning:
    """Adds to a dictionary when it is pickled for the first time, as another thread may."""

    def __init__(self, shared: dict[str, Any]) -> None:
        self.shared = shared

    def __reduce__(self) -> tuple[Any, ...]:
        self.shared["learned"] = 1
        return (str, ("sent",))


def test_a_request_that_grows_while_it_is_pickled_is_sent_all_the_same() -> None:
    request: dict[str, Any] = {"first": 1}
    request["learning"] = _Learning(request)
    with pytest.raises(RuntimeError, match="changed size"):
        pickle.dumps(request)
    del request["learned"]
    assert pickle.loads(pickled(request)) == {"first": 1, "learning": "sent", "learned": 1}


def test_what_cannot_be_pickled_is_an_error() -> None:
    with pytest.raises((AttributeError, pickle.PicklingError)):
        pickled(lambda: None)
