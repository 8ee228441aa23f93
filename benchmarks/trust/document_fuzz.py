"""Broken documents of every kind, given to the commands that read them.

    python -m benchmarks.trust.document_fuzz --count 5000
    python -m benchmarks.trust.document_fuzz --count 200 --json documents.json

Hypothesis draws the files (`broken_documents`), a valid one of the kind or one of its schema first;
`document_checks` runs the command and says what is wrong with what it did. The same seed draws the
same files. A kind of file that another part of heterps reads gets its name in
`fuzz_kinds.KINDS` and a line in `fuzz_kinds.kinds`.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from benchmarks.shared.common import parse_options, report
from benchmarks.trust.document_checks import REFUSED, check_command, quiet_environment
from benchmarks.trust.fuzz_kinds import FILE, Kind, kinds
from benchmarks.trust.valid_documents import Row, write_valid
from benchmarks.trust.whole_checkpoint import Content, valid_checkpoint, write_folder


def _warm_up(chosen: Mapping[str, Kind], folder: Path) -> Iterator[str]:
    """Every command once with valid files: what it imports and compiles counts for no broken one.

    What it has against a valid file is a finding too: it would have as much against all others.
    """
    for name, kind in chosen.items():
        for command in kind.commands if kind.valid else ():
            valid = [kind.valid if part == FILE else part for part in command]
            verdict = check_command(valid, folder, 900.0, kind.last_steps)
            if verdict.findings or not verdict.is_through:
                yield f"{name}: {' '.join(valid)}: a valid file: {verdict}"


@dataclass
class Outcome:
    """What came of the files.

    Attributes:
        files: By kind.
        refused: Of these, those that got a line and exit code 2.
        slowest_s: The longest answer, by kind.
        findings: What is wrong, with the command and the file's first bytes.
    """

    files: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    slowest_s: dict[str, float] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)
    seconds: float = 0.0


def fuzz(
    count: int,
    number: int = 0,
    only: Sequence[str] = (),
    on_finding: Callable[[str], None] = lambda text: None,
) -> Outcome:
    """Gives `count` files to commands.

    Args:
        count: Files of all kinds together, about.
        number: Seed.
        only: Names of kinds; by default all.
        on_finding: Called with each finding, to show it at once.
    """
    quiet_environment()
    outcome, start = Outcome(), time.perf_counter()
    chosen = {name: kind for name, kind in kinds().items() if not only or name in only}
    total = sum(kind.share for kind in chosen.values())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_valid(folder)
        write_folder(folder / FILE, valid_checkpoint())
        for text in _warm_up(chosen, folder):
            outcome.findings.append(text)
            on_finding(text)
        for kind_name, kind in chosen.items():
            told = len(outcome.findings)
            share = max(1, count * kind.share // total)
            _fuzz_kind(kind_name, kind, share, number, folder, outcome)
            for text in outcome.findings[told:]:
                on_finding(text)
    outcome.seconds = time.perf_counter() - start
    return outcome


def _fuzz_kind(
    name: str, kind: Kind, count: int, number: int, folder: Path, outcome: Outcome
) -> None:
    @seed(number)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(content=kind.files, index=st.integers(0, len(kind.commands) - 1))
    def check(content: bytes | Content, index: int) -> None:
        file = folder / f"{FILE}{kind.suffix}"
        if isinstance(content, bytes):
            file.write_bytes(content)
        else:
            shutil.rmtree(file, ignore_errors=True)
            write_folder(file, content)
        command = [file.name if part == FILE else part for part in kind.commands[index]]
        verdict = check_command(command, folder, last_steps=kind.last_steps)
        outcome.files[name] += 1
        outcome.refused[name] += verdict.code == REFUSED
        outcome.slowest_s[name] = max(outcome.slowest_s.get(name, 0.0), verdict.seconds)
        shown = content[:600] if isinstance(content, bytes) else dict(content)
        outcome.findings += [
            f"{name}: {' '.join(command)}: {text} | {shown!r}" for text in verdict.findings
        ]

    check()


def rows(outcome: Outcome) -> list[Row]:
    """One row for each kind of file."""
    return [
        {
            "kind": name,
            "files": count,
            "refused": outcome.refused[name],
            "slowest_s": outcome.slowest_s[name],
            "findings": sum(text.startswith(f"{name}: ") for text in outcome.findings),
        }
        for name, count in outcome.files.items()
    ]


def summary(outcome: Outcome) -> Row:
    """The numbers that the table of the subject shows."""
    return {
        "document_fuzz_files": outcome.files.total(),
        "document_fuzz_findings": len(outcome.findings),
        "document_fuzz_slowest_s": max(outcome.slowest_s.values(), default=0.0),
        "document_fuzz_seconds": outcome.seconds,
    }


def main() -> None:
    """Runs the benchmark and prints its table and what it found."""
    options = _options()
    only = options.kinds.split(",") if options.kinds else ()
    count = 200 if options.quick else int(options.count or 5000)
    outcome = fuzz(count, options.seed, only, on_finding=print)
    report("Broken documents", rows(outcome), summary(outcome), options)


def _options() -> argparse.Namespace:
    return parse_options(
        __doc__ or "", count="files, 5000 by default", kinds="only these, with commas between"
    )


if __name__ == "__main__":
    main()
