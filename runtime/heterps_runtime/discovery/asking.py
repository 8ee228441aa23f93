"""Runs the script on this machine and on others; what they answer is bounded in size and time."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from subprocess import PIPE
from typing import IO, cast

from heterps_configs.errors import HeterpsError
from heterps_runtime.discovery.host_names import THIS_MACHINE, ssh_destination

# Of a host; a driver that hangs is given up before.
TIME_LIMIT_S = 120.0
MOST_BYTES = 2**20
SSH = ("ssh", "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10")
_AT_A_TIME = 32
_MOMENT_S = 0.02
_LAST_WORDS_S = 0.5
_LONGEST_REASON = 200


@dataclass(frozen=True)
class Answer:
    """What the script printed on a host, or why there is nothing.

    Attributes:
        host: As the user calls it.
        failure: Empty where all went well.
    """

    host: str
    text: str = ""
    failure: str = ""


@lru_cache(maxsize=1)
def probe_script() -> str:
    """The script: POSIX shell, read-only."""
    return (files("heterps_runtime.discovery") / "probe.sh").read_text(encoding="utf-8")


def ask(hosts: Sequence[str], time_limit_s: float = TIME_LIMIT_S) -> tuple[Answer, ...]:
    """Runs the script on all hosts, at once, in their order.

    Args:
        hosts: Names that `check_host_names` lets pass.
        time_limit_s: For each host.

    Raises:
        HeterpsError: Hosts that did not answer, all of them in one message.
    """
    found = _ask_all(hosts, time_limit_s)
    answers = tuple(found[host] for host in hosts)
    failed = [f"{answer.host}: {answer.failure}" for answer in answers if answer.failure]
    if not failed:
        return answers
    if len(hosts) == 1:
        raise HeterpsError(failed[0])
    raise HeterpsError(f"{len(failed)} of {len(hosts)} hosts did not answer: {'; '.join(failed)}")


def command_for(host: str) -> tuple[str, ...]:
    """The command that runs a script from its standard input on a host."""
    shell = ("sh", "-s")
    return shell if host == THIS_MACHINE else (*SSH, ssh_destination(host), *shell)


class _Conversation:
    """The script on one host, while it runs."""

    def __init__(self, host: str, time_limit_s: float) -> None:
        """Starts it.

        Raises:
            OSError: There is no such command.
        """
        self.host = host
        self.command = command_for(host)
        self.time_limit_s = time_limit_s
        self._ends_at = time.monotonic() + time_limit_s
        self.printed, self.said = bytearray(), bytearray()
        self._open = 2
        self._is_printing = True
        self._ended_at: float | None = None
        with tempfile.TemporaryFile() as script:
            script.write(probe_script().encode())
            script.seek(0)
            # In a session of its own: nothing can ask at the terminal, and all of it can be ended.
            self.process = subprocess.Popen(
                self.command, stdin=script, stdout=PIPE, stderr=PIPE, start_new_session=True
            )

    @property
    def pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        """What it prints, and what it complains about."""
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        return self.process.stdout, self.process.stderr

    def read(self, pipe: IO[bytes]) -> bool:
        """Keeps what has come, up to a bound; False: there will be no more."""
        part = os.read(pipe.fileno(), 2**16)
        kept = self.printed if pipe is self.process.stdout else self.said
        if len(kept) <= MOST_BYTES:
            kept += part
        if not part:
            self._open -= 1
            self._is_printing &= pipe is not self.process.stdout
        return bool(part)

    def answer(self) -> Answer | None:
        """The answer, or why there is none; None while it may still come.

        What ssh leaves behind (`ControlPersist`) may keep its complaints open: they are waited for
        only a moment.
        """
        if len(self.printed) > MOST_BYTES:
            return Answer(self.host, failure=f"answered with more than {MOST_BYTES // 2**10} KiB")
        code = self.process.poll()
        if code is None or (self._is_printing and code == 0):
            is_late = time.monotonic() > self._ends_at
            failure = f"no answer within {self.time_limit_s:g} s"
            return Answer(self.host, failure=failure) if is_late else None
        self._ended_at = self._ended_at or time.monotonic()
        if code and self._open and time.monotonic() < self._ended_at + _LAST_WORDS_S:
            return None
        if code:
            reason = _reason(self.said) or f"{self.command[0]} ended with code {code}"
            return Answer(self.host, failure=reason)
        return Answer(self.host, self.printed.decode("utf-8", errors="replace"))

    def end(self) -> None:
        """Ends the process and what it started, if it still runs."""
        if self.process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        for pipe in self.pipes:
            pipe.close()


def _ask_all(hosts: Sequence[str], time_limit_s: float) -> dict[str, Answer]:
    waiting, running = deque(hosts), list[_Conversation]()
    answers: dict[str, Answer] = {}
    with selectors.DefaultSelector() as selector:
        try:
            while waiting or running:
                while waiting and len(running) < _AT_A_TIME:
                    host = waiting.popleft()
                    try:
                        running.append(_started(host, time_limit_s, selector))
                    except OSError as error:
                        reason = f"{command_for(host)[0]} cannot be started: {error.strerror}"
                        answers[host] = Answer(host, failure=reason)
                _read_all(selector)
                for conversation in list(running):
                    answer = conversation.answer()
                    if answer is not None:
                        answers[conversation.host] = answer
                        running.remove(conversation)
                        _forget(conversation, selector)
        finally:
            for conversation in running:
                _forget(conversation, selector)
    return answers


def _started(host: str, time_limit_s: float, selector: selectors.BaseSelector) -> _Conversation:
    conversation = _Conversation(host, time_limit_s)
    for pipe in conversation.pipes:
        selector.register(pipe, selectors.EVENT_READ, conversation)
    return conversation


def _read_all(selector: selectors.BaseSelector) -> None:
    """Reads what has come; where nothing comes, a moment passes."""
    if not selector.get_map():
        time.sleep(_MOMENT_S)
    for key, _ in selector.select(_MOMENT_S):
        pipe = cast("IO[bytes]", key.fileobj)
        if not cast(_Conversation, key.data).read(pipe):
            selector.unregister(pipe)


def _forget(conversation: _Conversation, selector: selectors.BaseSelector) -> None:
    for pipe in conversation.pipes:
        if pipe.fileno() in selector.get_map():
            selector.unregister(pipe)
    conversation.end()


def _reason(said: bytes | bytearray) -> str:
    """The last line of what was complained about: before it stand banners and warnings."""
    lines = [line.strip() for line in said.decode("utf-8", errors="replace").splitlines()]
    return next((line for line in reversed(lines) if line), "")[:_LONGEST_REASON]
