"""A reward in a process of its own, where it can be ended: a function that anybody wrote may never return.

A thread cannot be ended from outside, and one that keeps the interpreter's lock (a regular expression that backtracks
for ever) stops all others. The process loads the reward once and serves call after call in its main thread; when a call
takes too long the process is killed, and the next call starts another.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from typing import Any

from reward.base import Reward, RewardError, Verdict

logger = logging.getLogger("reward.base")

TIMED_OUT = "timed_out"  # error of a verdict: the call did not return within the time limit
LOST = "grader"  # error of a verdict: the process at work on it ended

_LOADING_S = 600.0  # for what its module does when it is imported
_ORPHAN_S = 10.0  # beyond the time limit, after which a process that nobody ended ends itself
_MOST_FAILURES = 3  # calls in a row
_PROGRAM = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from reward.apart import serve; serve(sys.argv[2])"


class RewardTimeout(RewardError):
    """A reward does not return."""


class _CallFailed(Exception):
    """A call had no result: ``error`` is the kind, as in a verdict; the message says what happened, as a clause."""

    def __init__(self, message: str, error: str):
        super().__init__(message)
        self.error = error


@dataclass(frozen=True)
class RewardApart(Reward):
    """A reward whose function is called in a process of its own, for at most ``time_limit_s`` at a time.

    All rows of a call that takes longer have the error ``timed_out``, those of a call that ends its process
    ``grader``. At the third such call in a row :class:`RewardTimeout` or RewardError is raised instead.
    """

    time_limit_s: float = 60.0
    _process: list[_Process] = field(default_factory=list, init=False, repr=False, compare=False)
    _failures: list[str] = field(default_factory=list, init=False, repr=False, compare=False)  # in a row
    _lock: Any = field(default_factory=threading.Lock, init=False, repr=False, compare=False)

    def dry_call(self, problems: Sequence[Mapping[str, Any]]) -> list[Verdict]:
        try:
            return self._ask("dry_call", problems)
        except _CallFailed as error:
            raise self._fault(error, "; it was tried on 4 rows") from None

    def _judge(self, given: dict[str, Any]) -> list[Verdict]:
        rows = len(given["completions"])
        try:
            verdicts = self._ask("_judge", given)
        except _CallFailed as error:
            self._failures.append(error.error)
            if len(self._failures) >= _MOST_FAILURES:
                raise self._fault(error, f", {_MOST_FAILURES} times in a row") from None
            logger.warning("reward %r %s: %d completions are not judged", self.name, str(error), rows)
            return [Verdict(None, None, error=error.error) for _ in range(rows)]
        self._failures.clear()
        return verdicts

    def _fault(self, error: _CallFailed, when: str) -> RewardError:
        if error.error == TIMED_OUT:
            message = f"reward {self.name!r} {error}{when}: mend it, or raise its time_limit_s"
            return RewardTimeout(message, "time_limit_s")
        return RewardError(f"reward {self.name!r} {error}{when}")

    def _ask(self, method: str, argument: Any) -> list[Verdict]:
        """Have a method of the reward called there. Raises RewardError, _CallFailed."""
        with self._lock:
            if not self._process:
                self._process.append(_Process(self.name, self.args, self.time_limit_s))
            try:
                kind, result, told = self._process[0].ask(method, argument, self.time_limit_s)
            except BaseException:  # also Ctrl-C: its answer would be taken for that to the next call
                self._process.pop().end()
                raise
        for level, text in told:
            logger.log(level, "%s", text)
        if kind == "fault":
            raise RewardError(*result)
        return result


class _Process:
    def __init__(self, use: str, args: dict[str, Any], time_limit_s: float):
        """Raises RewardError where the reward cannot be loaded there."""
        ours, theirs = socket.socketpair()
        self._line = Connection(ours.detach())
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, json.dumps(sys.path), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C is for this process to serve
            )
        self.end = weakref.finalize(self, _end, self._process, self._line)
        try:
            kind, result, _ = self.ask(use, (args, time_limit_s), _LOADING_S)
        except _CallFailed as error:
            raise RewardError(f"reward {use!r} {error} while it was loaded in a process of its own") from None
        if kind == "fault":
            raise RewardError(*result)

    def ask(self, method: str, argument: Any, limit_s: float) -> tuple[str, Any, list[tuple[int, str]]]:
        """Raises _CallFailed."""
        try:
            self._line.send((method, argument))
            if not self._line.poll(limit_s):
                raise _CallFailed(f"has not returned within {limit_s:g} s", TIMED_OUT)
            return self._line.recv()
        except (EOFError, OSError):
            code = self._process.wait()
            raise _CallFailed(
                f"ended its process ({f'signal {-code}' if code < 0 else f'exit code {code}'})", LOST
            ) from None


def _end(process: subprocess.Popen[bytes], line: Connection) -> None:
    line.close()
    process.kill()
    process.wait()


# --- in the process ------------------------------------------------------------------------------


def serve(descriptor: str) -> None:
    """Load the reward that the first message names and answer the others, until the other side is gone."""
    from reward.load import load_reward

    line = Connection(int(descriptor))
    told: list[tuple[int, str]] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            told.append((record.levelno, self.format(record)))

    source = logging.getLogger("reward")
    source.addHandler(Keep(logging.WARNING))
    source.propagate = False
    reward, limit_s = None, _LOADING_S
    nowhere = os.open(os.devnull, os.O_WRONLY)
    while True:
        try:
            method, argument = line.recv()
        except EOFError:
            return
        # From a thread of C, for the case that the other side was killed and nobody ends this process.
        faulthandler.dump_traceback_later(limit_s + _ORPHAN_S, exit=True, file=nowhere)
        told.clear()
        try:
            if reward is None:
                args, limit_s = argument
                reward, result = load_reward(method, args), None
            else:
                result = [replace(verdict, metadata=_plain(verdict)) for verdict in getattr(reward, method)(argument)]
            answer = ("result", result, told)
        except RewardError as error:
            answer = ("fault", (str(error), error.key), told)
        faulthandler.cancel_dump_traceback_later()
        line.send(answer)


def _plain(verdict: Verdict) -> dict[str, Any]:
    """The metadata as it will be written, whatever objects it is made of."""
    return json.loads(json.dumps(dict(verdict.metadata), default=str))
