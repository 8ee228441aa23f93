"""What host 0 and another host of an elastic run say to one another, one JSON object each.

The other host begins with `Joining`; host 0 answers with `Welcome`. Then host 0 sends orders
(`Start`, `Signal`), and the other host tells what its processes say and how they end (`Told`). Last
comes `Farewell`. What does not validate ends the conversation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, NonNegativeInt

from heterps_configs.documents.base import Document
from heterps_runtime.fleet.worker_settings import WorkerSettings

# Files of a run directory that host 0 reads.
FILE_NAME = r"^(error|result|measurements)-\d{1,9}\.json$"


class Joining(Document):
    """Another host's first words.

    Attributes:
        facts: What must be equal on all hosts, by the name that an error shows.
        machine: On which it runs (`heterps_runtime.specification.hosts.machine_identity`).
    """

    facts: Mapping[str, str]
    machine: str


class Welcome(Document):
    """Host 0's answer.

    Attributes:
        refusal: Why the host may not take part; empty where it may.
        specification: Of the run's first plan, as JSON.
        num_threads: Threads of each process's kernels.
    """

    refusal: str = ""
    specification: str = ""
    num_threads: int = 1


class Start(Document):
    """Order: start a process.

    Attributes:
        ticket: By which it is spoken of; never used again.
        settings: What it is told; the host puts in a port of its own.
    """

    kind: Literal["start"] = "start"
    ticket: NonNegativeInt
    settings: WorkerSettings


class Signal(Document):
    """Order: send a signal to a process and its children."""

    kind: Literal["signal"] = "signal"
    ticket: NonNegativeInt
    number: int


class Farewell(Document):
    """The run is over.

    Attributes:
        failure: Why it has failed; empty where it has not.
    """

    kind: Literal["farewell"] = "farewell"
    failure: str = ""


class Order(Document):
    """Anything that host 0 sends after its welcome."""

    order: Start | Signal | Farewell = Field(discriminator="kind")


class Told(Document):
    """What the other host tells of a process; what is not told is None.

    Attributes:
        pid: It has begun.
        line: It has said something.
        code: It has ended, as `subprocess` says it.
        file: It has left a file of this name, with this text.
    """

    ticket: NonNegativeInt
    pid: int | None = None
    line: Mapping[str, Any] | None = None
    code: int | None = None
    file: str | None = Field(default=None, pattern=FILE_NAME)
    text: str = ""
