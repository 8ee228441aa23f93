"""What `heterps run` is asked for: a plan, settings from a file and the command line, events."""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from heterps_configs.documents.run_events import RunEvent
from heterps_configs.documents.run_settings import RunSettings
from heterps_configs.errors import HeterpsError
from heterps_configs.library import load_run_settings
from heterps_runtime.run.starting_point import check_weights
from heterps_runtime.specification.hosts import Hosts
from heterps_runtime.training.program_file import ProgramFile

if TYPE_CHECKING:
    from heterps.online.spot_run import SpotRun
    from heterps_configs.documents.plan import Plan
    from heterps_envs.problem import Problem

RUN_DIRECTORY = "runs/run"


class RunRequest(NamedTuple):
    """One call of `heterps run`.

    Attributes:
        plan_file: What runs.
        settings: How.
        model, cluster: Where the plan's own references moved.
        events: What is done to devices and links.
        spot: A spot trace that is lived through.
        event_files: Where the events are from, for messages.
        hosts: Of a run on several; None for one.
        trace: Where timelines are written.
        tensorboard: Folder.
        trusts_code: Code that the plan or the settings name may run without a question.
        has_own_program: The training program was named on the command line.
        at_hand: The plan and its problem, where they are in no file.
    """

    plan_file: Path
    settings: RunSettings
    model: str | None = None
    cluster: str | None = None
    events: tuple[RunEvent, ...] = ()
    spot: SpotRun | None = None
    is_online: bool = False
    is_elastic: bool = False
    hosts: Hosts | None = None
    trace: Path | None = None
    tensorboard: Path | None = None
    trusts_code: bool = False
    has_own_program: bool = False
    at_hand: tuple[Plan, Problem] | None = None
    event_files: tuple[str, ...] = ()
    as_json: bool = False

    @property
    def trusts_program(self) -> bool:
        """Whether the user has agreed to run the training program."""
        return self.trusts_code or self.has_own_program

    def check(self) -> None:
        """Refuses what does not go together.

        Raises:
            HeterpsError: With what does not.
        """
        settings, is_torch = self.settings, self.settings.engine == "torch"
        _ = settings.saving
        wrong = {
            "--trace: not with engine torch, whose schedules measure no actions": is_torch
            and self.trace is not None,
            "engine torch: not with --nodes; it runs on one host": is_torch
            and self.hosts is not None,
            "--elastic: not with engine torch": is_torch and self.is_elastic,
            "--events FILE.csv: needs --elastic": self.spot is not None and not self.is_elastic,
            "port: not with --nodes, whose --rendezvous names the port": self.hosts is not None
            and settings.port is not None,
        }
        for text, is_wrong in wrong.items():
            if is_wrong:
                raise HeterpsError(text)
        if self.is_elastic and settings.port is not None:
            warnings.warn("port is ignored with --elastic, which takes a free one", stacklevel=1)
        for mode, is_on in (("online", self.is_online), ("elastic", self.is_elastic)):
            given = getattr(settings, mode).to_mapping()
            if given and not is_on:
                names = ", ".join(f"{mode}.{name}" for name in given)
                warnings.warn(f"settings that need --{mode} are ignored: {names}", stacklevel=1)

    def check_losses(self, problem: Problem) -> None:
        """Warns of losses of what the cluster does not have."""
        known = {
            name for device in problem.cluster.devices for name in (device.name, device.type.name)
        }
        rates = self.settings.elastic.losses_per_hour if self.is_elastic else {}
        unknown = [name for name in rates if name not in known]
        if unknown:
            warnings.warn(
                f"elastic.losses_per_hour: ignored, as the cluster {problem.cluster.name!r} has no "
                f"such devices or device types: {', '.join(unknown)}",
                stacklevel=1,
            )

    def facts(self) -> dict[str, object]:
        """What must be the same on all hosts, by name."""
        program = self.settings.program
        own = {"run_directory": None, "verify": False, "timeout_s": None, "program": None}
        facts: dict[str, object] = {}
        for name, value in self.settings.changed(**own).model_dump().items():
            inner = value if isinstance(value, dict) else {"": value}
            facts |= {f"{name}.{key}".strip("."): entry for key, entry in inner.items()}
        events = [event.to_mapping() for event in self.events]
        return {
            "--online": self.is_online,
            "--elastic": self.is_elastic,
            "content of --program": program and ProgramFile.of(program).sha256,
            "--events": events or None,
            **{_OPTIONS.get(name, name): value for name, value in facts.items()},
        }


# Settings that are options, too.
_OPTIONS = {
    "steps": "--steps",
    "seed": "--seed",
    "device": "--device",
    "resume": "--resume",
    "program": "--program",
    "checkpoint.folder": "--checkpoint",
}


def read_settings(reference: str | None, given: Mapping[str, Any]) -> RunSettings:
    """Settings from a file, or the usual ones, with what the command line says.

    Args:
        reference: File or shipped name; None for the usual ones.
        given: Fields that are options, too; None for those that were not given. `checkpoint` is
            the folder.

    Raises:
        HeterpsError: The file or an option is bad.
    """
    settings = RunSettings() if reference is None else load_run_settings(reference)
    fields = {name: value for name, value in given.items() if value is not None}
    if "checkpoint" in fields:
        folder = str(fields["checkpoint"])
        # A URL has lost one of its slashes by becoming a path.
        if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", folder):
            raise HeterpsError(
                f"--checkpoint {folder}: is a URL; name a folder of this host here, and give the "
                "URL as checkpoint.remote in a settings file (--settings FILE)"
            )
        fields["checkpoint"] = settings.checkpoint.changed(folder=folder)
    directory = fields.get("run_directory") or settings.run_directory or RUN_DIRECTORY
    fields["run_directory"] = str(directory)
    kept = {name: getattr(settings, name) for name in RunSettings.model_fields}
    chosen = RunSettings.from_mapping({**kept, **fields}, "options of heterps run")
    if reference is not None:
        check_file(reference, chosen, beside=fields)
    return chosen


def check_file(reference: str, settings: RunSettings, beside: Collection[str] = ()) -> None:
    """Refuses what a file of settings names and is not there, with the file.

    Args:
        reference: File or shipped name.
        settings: Those of the file, with what was said beside it.
        beside: Fields that were said beside it.

    Raises:
        HeterpsError: With the file and the field.
    """
    if settings.resume and not settings.checkpoint.folder and "resume" not in beside:
        raise HeterpsError(f"{reference}: resume: needs checkpoint.folder, or --checkpoint FOLDER")
    try:
        if "resume" not in beside:
            _ = settings.saving
        if settings.program is not None and "program" not in beside:
            ProgramFile.of(settings.program)
        if settings.weights is not None and not settings.resume:
            check_weights(settings.weights)
    except HeterpsError as error:
        raise HeterpsError(f"{reference}: {error}") from None
