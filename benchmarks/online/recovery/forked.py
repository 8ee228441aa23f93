"""Processes that are forked instead of started: hundreds of runs without as many imports of torch.

A *template* is a process without threads that has imported everything. It forks a process for each
request, and reports how they end. To the supervisor of an elastic run its processes look like those
that it starts itself; what they do from there on is the same.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, TextIO

Main = Callable[[list[str]], int]
POLL_S = 0.003


class ForkedProcess:
    """The part of `subprocess.Popen` that the supervisor uses."""

    def __init__(self, template: Template, pid: int, stdout: TextIO) -> None:
        self._template, self.pid, self.stdout = template, pid, stdout

    @property
    def returncode(self) -> int | None:
        """As of `subprocess.Popen`; None while it runs."""
        return self._template.code_of(self.pid)

    def poll(self) -> int | None:
        """Looks whether it has ended."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Waits for its end.

        Raises:
            TimeoutExpired: It still runs.
        """
        deadline_s = None if timeout is None else time.monotonic() + timeout
        while True:
            code = self.returncode
            if code is not None:
                return code
            if deadline_s is not None and time.monotonic() > deadline_s:
                raise subprocess.TimeoutExpired("forked", timeout or 0.0)
            time.sleep(POLL_S)


class Template:
    """Forks this process once; that copy forks the others. There may be no threads yet.

    Args:
        main: What a forked process runs; it gets its arguments, and returns its exit code.

    Attributes:
        started: Arguments of each process, by number.
    """

    PIPE, DEVNULL, TimeoutExpired = subprocess.PIPE, subprocess.DEVNULL, subprocess.TimeoutExpired

    def __init__(self, main: Main) -> None:
        self._lock = threading.Lock()
        self._codes: dict[int, int] = {}
        self.started: dict[int, list[str]] = {}
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.pid = os.fork()
        if self.pid == 0:
            self._socket.close()
            _serve(other, main)
        other.close()

    def Popen(
        self, command: Sequence[str], *, stderr: IO[bytes], env: Mapping[str, str], **_: Any
    ) -> ForkedProcess:
        """Forks a process; of its command only the arguments behind the module's name count."""
        arguments = list(command[command.index("-m") + 2 :])
        read, write = os.pipe()
        request = json.dumps({"arguments": arguments, "environment": dict(env)}).encode()
        with self._lock:
            socket.send_fds(self._socket, [request], [write, stderr.fileno()])
            os.close(write)
            while True:
                pid = self._take(self._socket.recv(4096))
                if pid is not None:
                    break
        self.started[pid] = arguments
        return ForkedProcess(self, pid, os.fdopen(read, "r"))

    def code_of(self, pid: int) -> int | None:
        """How a process has ended; None while it runs."""
        with self._lock:
            while pid not in self._codes and select.select([self._socket], [], [], 0)[0]:
                self._take(self._socket.recv(4096))
            return self._codes.get(pid)

    def _take(self, message: bytes) -> int | None:
        """Notes an end; returns the number of a process that has begun."""
        if not message:
            raise RuntimeError("the template has gone")
        content = json.loads(message)
        if "code" in content:
            self._codes[content["pid"]] = content["code"]
            return None
        return int(content["pid"])


def _serve(own: socket.socket, main: Main) -> None:
    """Forks on request, until nobody asks any more; never returns."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        if select.select([own], [], [], POLL_S)[0]:
            request, descriptors, _, _ = socket.recv_fds(own, 1 << 20, 2)
            if not request:
                os._exit(0)
            content = json.loads(request)
            pid = os.fork()
            if pid == 0:
                own.close()
                _become(content, descriptors, main)
            for descriptor in descriptors:
                os.close(descriptor)
            own.send(json.dumps({"pid": pid}).encode())
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                code = os.waitstatus_to_exitcode(status)
                with contextlib.suppress(OSError):
                    own.send(json.dumps({"pid": pid, "code": code}).encode())


def _become(content: dict[str, Any], descriptors: Sequence[int], main: Main) -> None:
    """Turns this copy into the process that was asked for; never returns."""
    code = 1
    try:
        os.setsid()
        os.dup2(descriptors[0], 1)
        os.dup2(descriptors[1], 2)
        for descriptor in descriptors:
            os.close(descriptor)
        sys.stdout = os.fdopen(1, "w", closefd=False)
        sys.stderr = os.fdopen(2, "w", closefd=False)
        os.environ.clear()
        os.environ.update(content["environment"])
        code = main(content["arguments"])
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
    os._exit(code)
