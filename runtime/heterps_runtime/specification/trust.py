"""Trust in the code that a run's specification names: its model's and the training program's."""

from __future__ import annotations

from heterps_configs.documents.run_settings import RunSettings
from heterps_configs.errors import HeterpsError
from heterps_runtime.models.trust import check_trusted, is_shipped, trust, trust_source
from heterps_runtime.specification.run import RunSpecification
from heterps_runtime.training.program_file import ProgramFile


def trust_specification(specification: RunSpecification) -> None:
    """A rank trusts what its launcher put down."""
    trust_source(specification.profile.source)
    if specification.program is not None:
        trust(specification.program.reference)


def agreed_program(settings: RunSettings, *, trust_code: bool) -> ProgramFile | None:
    """The training program of a run, where somebody has agreed to run it.

    Args:
        settings: Of the run.
        trust_code: The caller agrees.

    Raises:
        UntrustedCodeError: Nobody has agreed.
        HeterpsError: There is no such file, or it cannot be trained with so.
    """
    if settings.program is None:
        return None
    if settings.engine == "torch":
        raise HeterpsError("program: not with engine torch, which trains on synthetic batches")
    found = ProgramFile.of(settings.program)
    if trust_code or is_shipped(found.reference):
        found.agree()
    found.check_agreed()
    return found


def check_sent(specification: RunSpecification) -> RunSpecification:
    """The user of this host was asked for what this host read, not for what another sends.

    Returns:
        The specification with this host's own file of the training program.

    Raises:
        UntrustedCodeError: The model or the program is another host's code.
    """
    source, program = specification.profile.source, specification.program
    if source is not None and source.factory is not None:
        check_trusted(source.factory)
    return (
        specification if program is None else specification.changed(program=program.check_agreed())
    )
