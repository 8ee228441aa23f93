"""The log of a rank: stamped lines, and all that the process prints."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from heterps_runtime.process.rank_log import StampedStream, rank_log_path

STAMP = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} fast  "


def test_every_line_begins_with_time_and_device_however_it_is_written() -> None:
    reader, writer = os.pipe()
    stream = StampedStream(writer, "fast")
    print("one", "two", file=stream)
    stream.write("three\nfo")
    stream.write("ur\n")
    os.close(writer)
    lines = os.read(reader, 10_000).decode().splitlines()
    os.close(reader)
    assert [re.sub(STAMP, "", line) for line in lines] == ["one two", "three", "four"]
    assert all(re.match(STAMP, line) for line in lines)


def test_all_that_a_process_prints_is_in_its_log_and_the_launcher_hears_its_own_lines(
    tmp_path: Path,
) -> None:
    program = (
        "import os, sys, logging, warnings; from pathlib import Path;"
        "from heterps_runtime.process.rank_log import print_into_log;"
        f"launcher = print_into_log(Path({str(tmp_path)!r}), 3, 'fast');"
        "print('printed'); warnings.warn('warned');"
        "os.write(2, b'from a library\\n'); os.system('echo from a child');"
        "logging.getLogger('heterps_runtime.x').info('logged');"
        "print('{}', file=launcher, flush=True); os.abort()"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment
    )
    assert ended.stdout == "{}\n"
    text = rank_log_path(tmp_path, 3).read_text()
    for expected in ("printed", "warned", "logged"):
        assert re.search(f"(?m)^{STAMP}.*{expected}", text), expected
    for expected in ("from a library", "from a child", "Fatal Python error: Aborted"):
        assert re.search(f"(?m)^{expected}", text), expected
