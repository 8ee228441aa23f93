"""The process that `template.Template` starts: imports a module once, and forks on request.

    python -m heterps_runtime.process.template_server DESCRIPTOR MODULE LOG [LIBRARY ...]

Requests and answers are lines of JSON on a socket, whose end is the end of this process: then the
processes that it forked notice that their parent has gone. There are no threads here, so that a
copy is as good as a new process.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import random
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NoReturn

Main = Callable[[list[str]], int]
# Standard output, standard error, and one more that a request may name.
MAX_DESCRIPTORS = 3
_CHUNK = 1 << 16


def serve(own: socket.socket, main: Main) -> NoReturn:
    """Forks a process for each request, and says how each one ends; never returns.

    Args:
        own: This side of the socket.
        main: What a forked process runs: it gets its arguments, and returns its exit code.
    """
    try:
        _serve(own, main)
    except OSError:
        pass  # nobody is there any more, in the middle of an answer
    except BaseException:
        traceback.print_exc()
    os._exit(1)


def _serve(own: socket.socket, main: Main) -> NoReturn:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    wake, woken = os.pipe()
    for descriptor in (wake, woken):
        os.set_blocking(descriptor, False)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    # What is here now stays: copies share its memory, and destroy nothing that their parent made.
    gc.freeze()
    while True:
        readable = select.select([own.fileno(), wake], [], [])[0]
        if wake in readable:
            os.read(wake, _CHUNK)
        if own.fileno() in readable:
            request, descriptors = _request(own)
            if request is None:
                os._exit(0)
            # It has them already, but for one that was kept for the models of other runs.
            _import_what_can_be(request["libraries"])
            gc.freeze()
            in_session, has_session = os.pipe()
            pid = os.fork()
            if pid == 0:
                # Its own session: signals for its group reach it and its children alone.
                os.setsid()
                signal.set_wakeup_fd(-1)
                for descriptor in (own.detach(), wake, woken, in_session, has_session):
                    os.close(descriptor)
                _become(request, descriptors, main)
            for descriptor in (has_session, *descriptors):
                os.close(descriptor)
            # Nothing comes but the end: who asked may signal the group as soon as it knows it.
            os.read(in_session, 1)
            os.close(in_session)
            own.sendall(json.dumps({"pid": pid}).encode() + b"\n")
        _tell_ends(own)


def _import_what_can_be(libraries: Sequence[str]) -> None:
    for library in libraries:
        with contextlib.suppress(Exception):
            import_module(library)


def _request(own: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """The next request and its descriptors; None where nobody asks any more."""
    data, descriptors, _, _ = socket.recv_fds(own, _CHUNK, MAX_DESCRIPTORS)
    while data and not data.endswith(b"\n"):
        more = own.recv(_CHUNK)
        data = data + more if more else b""
    return (json.loads(data) if data else None), list(descriptors)


def _tell_ends(own: socket.socket) -> None:
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            message = {"pid": pid, "code": os.waitstatus_to_exitcode(status)}
            with contextlib.suppress(OSError):
                own.sendall(json.dumps(message).encode() + b"\n")


def _become(request: dict[str, Any], descriptors: Sequence[int], main: Main) -> NoReturn:
    """Turns this copy into the process that was asked for; never returns."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.environ.clear()
        os.environ.update(request["environment"])
        for target, descriptor in zip((1, 2), descriptors, strict=False):
            os.dup2(descriptor, target)
            os.close(descriptor)
        if request["descriptor_variable"]:
            os.environ[request["descriptor_variable"]] = str(descriptors[2])
        sys.stdout = os.fdopen(1, "w", closefd=False)
        sys.stderr = os.fdopen(2, "w", closefd=False)
        random.seed()
        code = main(request["arguments"])
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        # Without destructors: torch's take seconds, those of a broken group wait for other ranks.
        os._exit(code)


if __name__ == "__main__":
    imported = import_module(sys.argv[2])
    _import_what_can_be(sys.argv[4:])
    gc.collect()
    serve(socket.socket(fileno=int(sys.argv[1])), imported.main)
