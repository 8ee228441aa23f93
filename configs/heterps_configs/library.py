"""One way to every document: by path, by a name in `$HETERPS_CONFIG_PATH`, or by a shipped name."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heterps_configs.documents.base import Document
from heterps_configs.documents.cluster import Cluster
from heterps_configs.documents.device import DeviceType, shipped_device_types
from heterps_configs.documents.job import Job, leaves_size_open, with_a_size
from heterps_configs.documents.link_kinds import shipped_link_kinds
from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.documents.plan import Plan
from heterps_configs.documents.yaml_files import parse_yaml, read_text, write_bytes
from heterps_configs.errors import HeterpsError, UnknownNameError

if TYPE_CHECKING:
    from heterps_configs.documents.effort import EffortTable
    from heterps_configs.documents.run_events import RunEvents
    from heterps_configs.documents.run_settings import RunSettings

CONFIG_PATH_VARIABLE = "HETERPS_CONFIG_PATH"
YAML_SUFFIXES = (".yaml", ".yml", ".json")


@dataclass(frozen=True)
class Kind:
    """One kind of file.

    Attributes:
        folder: Folder of the shipped files; also the name of the kind in commands.
        singular: What messages call one of them.
        checked_by: Module of `documents` and its class; empty for files that are no documents.
        suffixes: Allowed ends of a file name.
    """

    folder: str
    singular: str
    checked_by: str
    suffixes: tuple[str, ...] = YAML_SUFFIXES

    @property
    def document(self) -> type[Document] | None:
        """The class that checks it, imported now: to place a model takes few of them."""
        return _document(self.checked_by) if self.checked_by else None


KINDS = {
    kind.folder: kind
    for kind in (
        Kind("clusters", "cluster", "cluster.Cluster"),
        Kind("models", "model", "model_profile.ModelProfile"),
        Kind("devices", "device catalogue", "device.DeviceCatalogue"),
        Kind("links", "table of link kinds", "link_kinds.LinkKinds"),
        Kind("policies", "policy", "", suffixes=(".npz",)),
        Kind("efforts", "effort table", "effort.EffortTable"),
        Kind("training", "training configuration", "training.ChainTrainingConfig"),
        Kind("settings", "run settings", "run_settings.RunSettings"),
        Kind("events", "run events", "run_events.RunEvents"),
        Kind("jobs", "job", "job.Job"),
        Kind("plans", "plan", "plan.Plan"),
    )
}


def load_cluster(reference: str | os.PathLike[str]) -> Cluster:
    """The cluster of a path or a name; see `find`.

    Raises:
        HeterpsError: Nothing of that name, or a broken file.
    """
    return Cluster.from_mapping(*_parsed("clusters", reference))


def load_profile(reference: str | os.PathLike[str]) -> ModelProfile:
    """The model profile of a path or a name; see `find`.

    Raises:
        HeterpsError: Nothing of that name, or a broken file.
    """
    return ModelProfile.from_mapping(*_parsed("models", reference))


def load_job_fields(reference: str | os.PathLike[str]) -> dict[str, Any]:
    """The fields of `Job` that the file of a path names, checked; see `find`.

    They are no job yet: a size of micro-batches that the file leaves open may be chosen later.

    Raises:
        HeterpsError: No such file, or a broken one.
    """
    data, source = _parsed("jobs", reference)
    is_open = isinstance(data, dict) and leaves_size_open(data)
    job = Job.from_mapping(with_a_size(data) if is_open else data, source)
    return {name: getattr(job, name) for name in data}


def load_plan(reference: str | os.PathLike[str]) -> Plan:
    """The plan of a path; see `find`.

    Raises:
        HeterpsError: No such file, or a broken one.
    """
    return Plan.from_mapping(*_parsed("plans", reference))


def load_run_settings(reference: str | os.PathLike[str]) -> RunSettings:
    """The run settings of a path or a name; see `find`.

    Raises:
        HeterpsError: Nothing of that name, or a broken file.
    """
    from heterps_configs.documents.run_settings import RunSettings

    return RunSettings.from_mapping(*_parsed("settings", reference))


def load_run_events(reference: str | os.PathLike[str]) -> RunEvents:
    """The run events of a path or a name; see `find`.

    Raises:
        HeterpsError: Nothing of that name, or a broken file.
    """
    from heterps_configs.documents.run_events import RunEvents

    return RunEvents.from_mapping(*_parsed("events", reference))


def load_efforts(reference: str | os.PathLike[str] = "efforts") -> EffortTable:
    """The efforts of a path or a name, by default the shipped ones; see `find`.

    Raises:
        HeterpsError: Nothing of that name, or a broken file.
    """
    from heterps_configs.documents.effort import EffortTable

    return EffortTable.from_mapping(*_parsed("efforts", reference))


def load(kind: str, reference: str | os.PathLike[str]) -> Document:
    """The document of any kind but `policies`, which are no documents.

    Raises:
        HeterpsError: Unknown kind, nothing of that name, or a broken file.
    """
    document = _kind(kind).document
    if document is None:
        raise HeterpsError(f"{kind} are not documents")
    data, source = _parsed(kind, reference)
    if kind == "training" and isinstance(data, dict) and "problems" in data:
        document = _document("training.GraphTrainingConfig")
    return document.from_mapping(data, source)


def find(kind: str, reference: str | os.PathLike[str]) -> Traversable:
    """The file that a reference stands for (`Path` is a `Traversable`).

    A reference is the path of an existing file; else a name looked up in each folder of
    `$HETERPS_CONFIG_PATH` (`NAME.yaml` or `KIND/NAME.yaml`); else a shipped name.

    Raises:
        UnknownNameError: No such name; suggests near ones.
        HeterpsError: A path that does not exist, is a folder, or has the wrong suffix.
    """
    entry, text = _kind(kind), os.fspath(reference)
    if not text:
        # Of a shell's variable that is not set; the path would be the folder that one is in.
        hint = f"; `heterps list {kind}` shows some" if shipped(kind) else ""
        raise HeterpsError(f"{entry.singular}: the name is empty{hint}")
    path = Path(text)
    if path.suffix in entry.suffixes and path.is_file():
        return path
    named = _available(kind)
    if text in named:
        return named[text]
    allowed = ", ".join(entry.suffixes)
    if path.is_dir():
        raise HeterpsError(f"{text}: is a folder; expected a {entry.singular} file ({allowed})")
    if path.exists():
        raise HeterpsError(f"{text}: expected a {entry.singular} file ({allowed})")
    if path.suffix in entry.suffixes or len(path.parts) > 1:
        raise HeterpsError(f"{text}: no such file")
    if not named:
        raise HeterpsError(f"{text}: no such file; expected a {entry.singular} file ({allowed})")
    raise UnknownNameError(entry.singular, text, named)


def shipped(kind: str) -> tuple[str, ...]:
    """Names of the shipped files of a kind, sorted."""
    return tuple(sorted(_shipped(kind)))


def known(kind: str) -> tuple[str, ...]:
    """Everything that has a name, in `$HETERPS_CONFIG_PATH` too, sorted."""
    return tuple(sorted(_available(kind)))


def describe(kind: str) -> tuple[tuple[str, str], ...]:
    """Name and one line for each shipped file; of `devices`, `links` and `efforts` each entry.

    Raises:
        HeterpsError: Unknown kind, or a broken file.
    """
    if kind == "devices":
        return tuple(
            (name, _specification(entry)) for name, entry in shipped_device_types().items()
        )
    if kind == "links":
        return tuple((name, entry.description) for name, entry in shipped_link_kinds().items())
    if kind == "efforts":
        tables = [load_efforts(name) for name in shipped(kind)]
        return tuple(
            (name, effort.description) for table in tables for name, effort in table.efforts.items()
        )
    return tuple((name, _description(file)) for name, file in sorted(_shipped(kind).items()))


def copy(
    name: str,
    destination_dir: str | os.PathLike[str],
    kind: str | None = None,
    overwrite: bool = False,
) -> Path:
    """Copies a shipped file into a folder, for the user to edit.

    Args:
        name: A shipped name.
        destination_dir: Made if it does not exist.
        kind: Needed only where two kinds share the name.
        overwrite: Replace an existing file.

    Returns:
        The new file.

    Raises:
        UnknownNameError: Nothing shipped has that name.
        HeterpsError: The name is ambiguous, or the file exists.
    """
    kinds = [_kind(kind)] if kind else list(KINDS.values())
    having = [entry for entry in kinds if name in shipped(entry.folder)]
    if not having:
        _refuse_entry(name)
        raise UnknownNameError(
            kinds[0].singular if kind else "shipped file",
            name,
            [known for entry in kinds for known in shipped(entry.folder)],
        )
    if len(having) > 1:
        options = " or ".join(f"--kind {entry.folder}" for entry in having)
        raise HeterpsError(f"{name!r} is of {len(having)} kinds: say {options}")
    source = _shipped(having[0].folder)[name]
    target = Path(destination_dir) / source.name
    if target.exists() and not overwrite:
        raise HeterpsError(f"{target}: exists already; --overwrite replaces it")
    write_bytes(target, source.read_bytes())
    return target


def _refuse_entry(name: str) -> None:
    """Says of what `describe` names, and is no file, which files may hold it."""
    for kind in ("devices", "links", "efforts"):
        if name in dict(describe(kind)):
            raise HeterpsError(
                f"{name!r} is an entry of a file of {kind}, and files are copied whole: "
                f"{', '.join(shipped(kind))}"
            )


def _document(name: str) -> type[Document]:
    module, _, document = name.partition(".")
    found: type[Document] = getattr(import_module(f"heterps_configs.documents.{module}"), document)
    return found


def _kind(name: str) -> Kind:
    if name not in KINDS:
        raise UnknownNameError("kind", name, KINDS)
    return KINDS[name]


def _parsed(kind: str, reference: str | os.PathLike[str]) -> tuple[Any, str]:
    """The parsed file, and what error messages call it."""
    file, source = find(kind, reference), os.fspath(reference)
    return parse_yaml(read_text(file, source), source), source


def _shipped(kind: str) -> dict[str, Traversable]:
    """The shipped files of a kind by name."""
    entry = _kind(kind)
    return _names(entry, files("heterps_configs") / entry.folder)


def _available(kind: str) -> dict[str, Traversable]:
    """Everything that has a name, the first place that knows it winning."""
    entry = _kind(kind)
    found: dict[str, Traversable] = {}
    for folder in _config_folders(entry.folder):
        found = _names(entry, folder) | found
    return _shipped(kind) | found


def _config_folders(folder: str) -> Iterator[Path]:
    for part in os.environ.get(CONFIG_PATH_VARIABLE, "").split(os.pathsep):
        if part:
            yield Path(part) / folder
            yield Path(part)


def _names(kind: Kind, folder: Traversable) -> dict[str, Traversable]:
    """Files of a folder by name (without suffix)."""
    if not folder.is_dir():
        return {}
    return {
        Path(file.name).stem: file
        for file in folder.iterdir()
        if Path(file.name).suffix in kind.suffixes and file.is_file()
    }


def _description(file: Traversable) -> str:
    """The `description` of a YAML file; of the YAML file beside it for anything else."""
    if not file.name.endswith(YAML_SUFFIXES):
        beside = Path(str(file)).with_suffix(".yaml")
        if not beside.is_file():
            return ""
        file = beside
    content = parse_yaml(read_text(file, file.name), file.name)
    return str(content.get("description", "")) if isinstance(content, dict) else ""


def _specification(entry: DeviceType) -> str:
    """One line: memory, the fastest peak, price."""
    dtype, peak = max(entry.peak_flops_per_s.items(), key=lambda item: item[1])
    text = (
        f"{entry.memory_bytes / 1e9:.0f} GB, {peak / 1e12:g} TFLOP/s {dtype}, "
        f"${entry.price_usd_per_hour:g}/h"
    )
    return f"{text}, emulated" if entry.emulation else text
