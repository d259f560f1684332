"""The trusted process between the host and the subject.

Reads a request, and scripts from its standard input: a JSON line of chunks each, a chunk is the text of its steps and
how many objects each may change. Makes JSON lines on its standard output: one ``[script, step, answers]`` per chunk,
an answer is kind and value of the result and of the changed objects; ``[script, null, functions]`` for a script that
was traced; one ``[script, reason, seconds]`` at the end of each script (no reason for a whole one), with the
processor time of the subjects so far. Guarantees: it is not dumpable, so the subject, a process of the same user, reads
neither its memory nor its descriptors; the first subject is a fork from before any script was read, a later one another
interpreter, so neither inherits a script; a chunk is sent after all earlier answers were received; answers are bounded
and have one form, anything else ends their script. A subject that kills or floods this process loses its own pass.
"""

import ctypes
import json
import os
import select
import signal
import struct
import sys
import time

# Not through hashlib, which loads a whole library of ciphers at each start.
from _blake2 import blake2b
from typing import Any, Dict, List, Optional, Tuple

_PR_SET_DUMPABLE = 4
_MAX_FRAME_BYTES = 8 << 20
_MAX_VALUE_CHARS = 2000
_MAX_STARTS = 4
_POLL_S = 0.05
_CPU_CLOCK = 2
"""Of a process, in the numbers that Linux gives its clocks."""
_FRAMEWORK = frozenset({"pytest", "_pytest", "pluggy", "iniconfig", "repairgym_guest"})
"""Modules of an interpreter that runs tests, which a subject has to load for itself."""
_KINDS = frozenset({"plain", "error", "state", "opaque"})
_CONSTANTS = frozenset({"null", "true", "false"})


class SubjectError(Exception):
    """The subject died, is late, or sent something that is no answer."""


class Subject:
    """A subject process; `ask` sends a frame and returns the one that comes back."""

    def __init__(self, request: Dict[str, Any], is_forked: bool) -> None:
        """Make a process: a fork of this one, which must not have read a script yet, or another interpreter."""
        to_subject, from_subject = os.pipe(), os.pipe()
        ends = [to_subject[0], from_subject[1]]
        environment = {**os.environ, "PYTHONHASHSEED": str(request["hash_seed"])}
        sources = [os.path.normpath(os.path.join(os.getcwd(), path)) for path in request["source_paths"]]
        environment["PYTHONPATH"] = os.pathsep.join(sources)
        self.pid = os.fork()
        if self.pid == 0:
            if is_forked:
                for fd in (from_subject[0], to_subject[1]):
                    os.close(fd)
            _become_subject(request["boot"], ends, environment, is_forked)
        for fd in ends:
            os.close(fd)
        self._source, self._target = from_subject[0], to_subject[1]
        self._received = b""
        self._max_cpu_s = request["cpu_s"]
        os.set_blocking(self._source, False)
        os.set_blocking(self._target, False)
        own = {name: request[name] for name in ("imports", "clock_shift_s", "is_apart")}
        config = {"source_paths": sources, **own}
        self._start = {"sources": request["sources"], "config": config}

    def start(self, deadline: float) -> None:
        """Wait until the package is imported."""
        if self.ask(self._start, deadline) != "ready":
            raise SubjectError("malformed answer")

    def ask(self, content: Any, deadline: float) -> Any:
        """Send one frame and return the answer."""
        self.send(json.dumps(content), deadline)
        return self.receive(deadline)

    def send(self, text: str, deadline: float) -> None:
        """Send one frame, a JSON text."""
        data = text.encode()
        data = struct.pack("=I", len(data)) + data
        while data:
            try:
                data = data[os.write(self._target, data[: 1 << 16]) :]
            except BlockingIOError:
                self._wait([], [self._target], deadline)
            except OSError:
                raise SubjectError("died") from None

    def receive(self, deadline: float) -> Any:
        """Return the next frame."""
        size = struct.unpack("=I", self._exactly(4, deadline))[0]
        if size > _MAX_FRAME_BYTES:
            raise SubjectError("flooded")
        try:
            return json.loads(self._exactly(size, deadline).decode())
        except (ValueError, RecursionError):
            raise SubjectError("malformed answer") from None

    def _exactly(self, count: int, deadline: float) -> bytes:
        parts = [self._received]
        num_missing = count - len(self._received)
        while num_missing > 0:
            self._wait([self._source], [], deadline)
            part = os.read(self._source, 1 << 16)
            if not part:
                raise SubjectError("died")
            parts.append(part)
            num_missing -= len(part)
        data = b"".join(parts)
        self._received = data[count:]
        return data[:count]

    def _wait(self, readable: List[int], writable: List[int], deadline: float) -> None:
        while True:
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0 or (self._max_cpu_s and self.cpu_s() > self._max_cpu_s):
                raise SubjectError("timed out")
            if any(select.select(readable, writable, [], min(remaining_s, _POLL_S))):
                return

    def cpu_s(self) -> float:
        """Return the processor time that the process has used, its children left out."""
        return time.clock_gettime((~self.pid << 3) | _CPU_CLOCK)

    def end(self) -> None:
        """Kill the process and its children."""
        for fd in (self._source, self._target):
            os.close(fd)
        for kill, target in ((os.killpg, self.pid), (os.kill, self.pid)):
            try:
                kill(target, signal.SIGKILL)
            except OSError:
                continue
        os.waitpid(self.pid, 0)


def _become_subject(boot: str, ends: List[int], environment: Dict[str, str], is_forked: bool) -> None:
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        if is_forked:
            os.close(null)
            os.environ.update(environment)
            for name in [name for name in sys.modules if name.partition(".")[0] in _FRAMEWORK]:
                del sys.modules[name]
            sys.argv[:] = ["-c", *map(str, ends)]
            exec(compile(boot, "<subject>", "exec", dont_inherit=True), {"__name__": "__main__"})
            return
        for fd in ends:
            os.set_inheritable(fd, True)
        os.execve(sys.executable, [sys.executable, "-c", boot, *map(str, ends)], environment)
    finally:
        os._exit(1)


# --- scripts ----------------------------------------------------------------------------------------------------------


def _checked(answers: Any, nums_changed: List[int]) -> List[Tuple[str, str, str, str]]:
    """Return the answers to a chunk in their one form, long values as digests.

    An answer is kind and value of the result, then those of the objects that the step may have changed. These are plain
    when all of them are.
    """
    if not isinstance(answers, list) or len(answers) != len(nums_changed):
        raise SubjectError("died" if answers == "ended" else "malformed answer")
    checked = []
    for answer, num_changed in zip(answers, nums_changed):  # noqa: B905 - Python 3.8
        try:
            kind, value, after = answer
            is_known = {kind, *(part for part, _ in after)} <= _KINDS and len(after) == num_changed
            text, texts = _short(value), [_short(part) for _, part in after]
        except (TypeError, ValueError, RecursionError):
            raise SubjectError("malformed answer") from None
        if not is_known:
            raise SubjectError("malformed answer")
        is_plain = all(part == "plain" for part, _ in after)
        checked.append((kind, text, "plain" if is_plain else "state", "[%s]" % ",".join(texts)))
    return checked


def _short(text: str) -> str:
    if text not in _CONSTANTS:
        json.loads(text)
    if len(text) <= _MAX_VALUE_CHARS:
        return text
    return json.dumps(["digest", len(text), blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()])


def _write(line: List[Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")


class Feeder:
    """The feeder of all scripts of a request."""

    def __init__(self, request: Dict[str, Any]) -> None:
        self._request = request
        self._deadline = time.monotonic() + request["timeout_s"]
        self._num_starts = 0
        self._num_late = 0
        self._problem = "died"
        self._cpu_s = 0.0
        self._subject: Optional[Subject] = None
        self._fork: Optional[Subject] = None
        """The first subject, where a fork of this process has the conditions of the request."""
        if str(request["hash_seed"]) == os.environ.get("PYTHONHASHSEED") and not request["clock_shift_s"]:
            self._fork = Subject(request, is_forked=True)

    def _start(self, deadline: float) -> Subject:
        if self._num_starts >= _MAX_STARTS:
            raise SubjectError(self._problem)
        subject, self._fork = self._fork or Subject(self._request, is_forked=False), None
        try:
            subject.start(deadline)
        except SubjectError as error:
            # Code that cannot be imported once is not given the time of every script.
            self._num_starts, self._problem = _MAX_STARTS, f"setup: {error}"
            self._end(subject)
            raise SubjectError(self._problem) from None
        self._num_starts += 1
        return subject

    def play(self, number: int, chunks: List[Any]) -> None:
        """Play one script; write its observations, the reason when it ended early, and the processor time so far."""
        deadline = min(self._deadline, time.monotonic() + self._request["script_timeout_s"])
        try:
            if self._subject is None:
                self._subject = self._start(deadline)
            self._play(self._subject, number, chunks, deadline)
            _write([number, "", self._cpu_s + self._subject.cpu_s()])
        except SubjectError as error:
            if self._subject is not None:
                self._end(self._subject)
                self._subject = None
            _write([number, str(error), self._cpu_s])
            self._num_late += str(error) == "timed out"
            if self._num_late >= self._request["max_late"]:
                self._num_starts, self._problem = _MAX_STARTS, "timed out"

    def _end(self, subject: Subject) -> None:
        self._cpu_s += subject.cpu_s()
        subject.end()

    def _play(self, subject: Subject, number: int, chunks: List[Any], deadline: float) -> None:
        """Play one script; without an end of the process, the next one is played in it, too."""
        index, is_traced = 0, number in self._request["traced"]
        subject.send(json.dumps("traced" if is_traced else "script"), deadline)
        for text, nums_changed in chunks:
            subject.send(text, deadline)
            _write([number, index, _checked(subject.receive(deadline), nums_changed)])
            index += len(nums_changed)
        if self._request["is_apart"]:
            subject.send("null", deadline)
            functions = subject.receive(deadline) if is_traced else []
            if not isinstance(functions, list) or subject.receive(deadline) != "ended":
                raise SubjectError("malformed answer")
            if is_traced:
                _write([number, None, functions])


def main(request: Dict[str, Any]) -> None:
    """Serve the host; each line of standard input holds the chunks of a script."""
    feeder = Feeder(request)
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    for number, line in enumerate(sys.stdin):
        feeder.play(number, json.loads(line))
    sys.stdout.flush()
    os._exit(0)
