"""How the process of the command ends."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

# A library that a command imports writes what it has when the process ends.
LEAVES_LATE = """
import atexit, pathlib, sys
import heterps.cli.app
from heterps.__main__ import entry
write = pathlib.Path(sys.argv[1]).write_text
heterps.cli.app.main = lambda: atexit.register(write, "written at the end")
entry()
"""

# Ctrl-C comes while the first module of the command is imported.
INTERRUPTED_EARLY = """
import sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "heterps.cli.app":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupting())
from heterps.__main__ import entry
entry()
"""


def _command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "heterps", *arguments], capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_the_process_ends_with_the_code_of_the_command_and_all_of_its_output() -> None:
    listed, refused = (
        _command("list", "devices", "--json"),
        _command("place", "no-model", "-c", "h100-pod"),
    )
    assert listed.returncode == 0
    assert json.loads(listed.stdout)["devices"]
    assert refused.returncode == 2
    assert len(refused.stderr.splitlines()) == 1


def test_what_others_do_at_the_end_of_a_process_is_done(tmp_path: Path) -> None:
    late = tmp_path / "late.txt"
    subprocess.run([sys.executable, "-c", LEAVES_LATE, str(late)], check=True)
    assert late.read_text() == "written at the end"


def test_an_interrupt_before_the_command_is_imported_is_one_line() -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_EARLY], capture_output=True, text=True, check=False
    )
    assert done.returncode == 130
    assert done.stderr == "interrupted\n"


def test_output_that_cannot_be_written_is_no_success() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "heterps", "list", "devices"], stdout=full, check=False
        )
    assert done.returncode == 2
