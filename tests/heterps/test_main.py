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

INTERRUPTED = """
import sys
import heterps.cli.app as app
import heterps.commands.library as library
from heterps.__main__ import entry
def interrupted(*given, **named):
    raise KeyboardInterrupt
if sys.argv[1] == "main":
    app.main = interrupted
else:
    library.run_list = interrupted
sys.argv = ["heterps", "list"]
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


def test_output_that_cannot_be_written_is_no_success() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "heterps", "list", "devices"], stdout=full, check=False
        )
    assert done.returncode == 2


@pytest.mark.parametrize("where", ["main", "command"])
def test_an_interrupt_is_one_line_and_its_code(where: str) -> None:
    """While the command line is loaded, and while a command works."""
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, where], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (130, "interrupted\n")
