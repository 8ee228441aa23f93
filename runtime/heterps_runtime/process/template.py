"""Processes that are forked from one that has imported torch, instead of started one by one.

Importing torch takes a second or two of a core in each process; forking one that has takes
milliseconds. `Template("package.module", ...)` starts a process that imports the module and waits;
`fork` makes a copy of it that runs the module's `main(arguments)`.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple, Self, TextIO

from heterps_configs.errors import HeterpsError
from heterps_runtime.process.template_pool import Asked, asked, give, take
from heterps_runtime.process.template_server import Main, serve

_SERVER = "heterps_runtime.process.template_server"
_CHUNK = 1 << 16
_POLL_S = 0.003


class Passed(NamedTuple):
    """A descriptor that a forked process gets besides its outputs.

    Attributes:
        descriptor: Of this process.
        variable: Variable of the environment that tells the process its number there.
    """

    descriptor: int
    variable: str


class ForkedProcess:
    """A process of a template; the part of `subprocess.Popen` that is needed here.

    Attributes:
        pid: Its number, and that of its process group.
        stdout: What it prints.
    """

    def __init__(self, template: Template, pid: int, stdout: TextIO) -> None:
        self._template, self.pid, self.stdout = template, pid, stdout

    def poll(self) -> int | None:
        """Its exit code, below 0 for a signal; None while it runs."""
        return self._template.code_of(self.pid)

    def wait(self, timeout: float | None = None) -> int:
        """Waits for its end.

        Raises:
            TimeoutExpired: It still runs.
        """
        deadline_s = None if timeout is None else time.monotonic() + timeout
        while True:
            code = self.poll()
            if code is not None:
                return code
            if deadline_s is not None and time.monotonic() > deadline_s:
                raise subprocess.TimeoutExpired("forked process", timeout or 0.0)
            time.sleep(_POLL_S)


class Template(AbstractContextManager["Template", None]):
    """A process that forks others. Leaving the context ends it, and so in the end its processes.

    Within `template_pool.keeping_templates` it may wait for the next one instead. The system lists
    the processes of that one under the log of the first.

    Args:
        module: What it imports: has `main(arguments: list[str]) -> int`.
        environment: Its variables. What libraries read when they are loaded counts for all copies.
        log: File that its standard error is appended to.
        libraries: Modules that copies will import, so that each need not do it by itself. Those
            that cannot be imported are left to the copies, which say why.
    """

    def __init__(
        self,
        module: str,
        environment: Mapping[str, str],
        log: Path,
        libraries: Sequence[str] = (),
    ) -> None:
        self._asked: Asked | None = asked(module, environment)
        self._libraries = list(libraries)
        self._process: subprocess.Popen[bytes] | None = None
        waiting = take(self._asked)
        if waiting is not None:
            assert isinstance(waiting, Template), "nothing else is given"
            self._process = waiting._process
            self._begin(waiting._socket)
            return
        own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with log.open("ab") as errors, other:
            # Its own session: an interrupt on the terminal reaches only who started it.
            self._process = subprocess.Popen(
                # The log's path is for those who look at a list of processes.
                [sys.executable, "-m", _SERVER, str(other.fileno()), module, str(log), *libraries],
                pass_fds=(other.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
                env=dict(environment),
            )
        self._begin(own)

    @classmethod
    def of_this_process(cls, main: Main) -> Self:
        """A template that is a copy of this process, which may have no threads yet."""
        # Destructors that join threads, as those of gloo's groups do, would never end in a copy.
        gc.collect()
        own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        if os.fork() == 0:
            own.close()
            serve(other, main)
        other.close()
        template = cls.__new__(cls)
        template._process, template._asked, template._libraries = None, None, []
        template._begin(own)
        return template

    def _begin(self, own: socket.socket) -> None:
        self._socket, self._lock, self._rest = own, threading.Lock(), b""
        self._codes: dict[int, int] = {}
        self._num_begun = 0

    def __exit__(self, *raised: object) -> None:
        if any(raised) or self._asked is None or not self._is_idle() or not give(self._asked, self):
            self.end()

    def _is_idle(self) -> bool:
        """Whether it lives, and all that it forked have ended."""
        self.code_of(0)
        return self.is_alive() and len(self._codes) == self._num_begun

    def end(self) -> None:
        """Ends it."""
        self._socket.close()
        if self._process is not None:
            self._process.wait()

    def fork(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        passed: Passed | None = None,
    ) -> ForkedProcess:
        """Makes a process.

        Args:
            arguments: Of the module's `main`.
            environment: All of its variables.
            log: File that its standard error is appended to.
            passed: A descriptor for it.

        Raises:
            HeterpsError: The template has ended, as it does where the module cannot be imported.
        """
        request = {
            "arguments": list(arguments),
            "environment": dict(environment),
            "descriptor_variable": passed.variable if passed else "",
            "libraries": self._libraries,
        }
        read, write = os.pipe()
        try:
            with log.open("ab") as errors, self._lock:
                extra = [passed.descriptor] if passed else []
                data = json.dumps(request).encode() + b"\n"
                sent = socket.send_fds(self._socket, [data], [write, errors.fileno(), *extra])
                self._socket.sendall(data[sent:])
                pid = None
                while pid is None:
                    pid = self._read()
        except OSError:
            os.close(read)
            raise HeterpsError(f"the process that starts others has ended; see {log}") from None
        finally:
            os.close(write)
        return ForkedProcess(self, pid, os.fdopen(read, "r"))

    def is_alive(self) -> bool:
        """Whether it has not ended."""
        return self._process is None or self._process.poll() is None

    def code_of(self, pid: int) -> int | None:
        """How a process has ended, below 0 by a signal; None while it runs."""
        with self._lock:
            try:
                while pid not in self._codes and select.select([self._socket], [], [], 0)[0]:
                    self._read()
            except OSError:
                # The template has gone, and its processes go when they notice.
                return self._codes.get(pid, -signal.SIGKILL)
            return self._codes.get(pid)

    def _read(self) -> int | None:
        """Notes what the template says; the number of the process that has begun, if one has.

        Raises:
            OSError: The template has ended.
        """
        begun = None
        data = self._socket.recv(_CHUNK)
        if not data:
            raise ConnectionError("the template has ended")
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            content = json.loads(line)
            if "code" in content:
                self._codes[content["pid"]] = content["code"]
            else:
                begun = int(content["pid"])
                self._num_begun += 1
        return begun
