"""The supervisor of a test run: a process that passes the records on, and that the tested code cannot reach.

It is forked before any code of the tree runs; its child runs the tests. Reads a request and the signed lines of the
child; makes the records on :data:`.wire.RECORD_FD`. Guarantees:

- Only the supervisor holds the descriptor that leads to the host. Its memory and descriptors cannot be read by the
  tested process (not dumpable, and no ``ptrace``); ending it ends the run without the missing results.
- It counts as forged: a line without a valid signature, a record with other fields than a runner writes, a second or
  unasked list of tests, a record of a test before the one that runs, a passed test whose body did not come to its end
  (:mod:`.sealing`), a pass outside of a phase.
- Of a sealed run, the texts of tests lie only in the supervisor when code of the tree starts. The code of one test
  leaves it when that test starts, in the announced order, so what a test before it reported stands.

The child can still say what it likes about a test that runs: see docs/concepts/security.md.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import glob
import json
import marshal
import os
import select
import signal
import socket
import struct
import sys
import traceback
from types import CodeType, FunctionType
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

from .. import syscalls
from ..wire import RECORD_FD, Header, RecordReader, record_writer
from .sealing import REACHED, Key, Sealed, SourceFile, compile_sealed, seal

_LENGTH = struct.Struct(">I")
_CHUNK_BYTES = 1 << 16
_MAX_RECORD_BYTES = 1 << 16
"""Of a record of one phase: its message has 200 characters."""
_MAX_RUN_BYTES, _MAX_TRACED_BYTES = 32 << 20, 256 << 20
"""Of all records of a run; whoever writes more is not heard any more. Ten thousand tests take ten megabytes."""
_MAX_DELAY_MS = 20
"""A record is passed on so long after it came at the latest."""
_FIRST_FD = 64
_FIELDS = frozenset({
    "selected", "check", "id", "functions", "finished", "phase", "outcome", "message", "line", "duration_s",
    "is_forged", "reached", "reached_for", "path",
})  # fmt: skip
"""Fields of the records that runners write; the supervisor's own count of forged records is none."""
_WITHOUT_TESTS = frozenset({"object", "TestCase", "IsolatedAsyncioTestCase"})
"""Bases of test classes that define no test."""
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM, signal.SIGUSR1, signal.SIGUSR2)
# Bound now: code of the tree can replace the attributes of these modules later.
_getpid, _read, _loads, _FunctionType = os.getpid, os.read, marshal.loads, FunctionType


# --- the child's side -------------------------------------------------------------------------------------------------


class Link:
    """The connection of the tests' process to its supervisor."""

    def __init__(self, key_hex: str, fd: int) -> None:
        """Connect through ``fd``; a key without digits is valid where nothing reads (warm-up)."""
        self._pid = _getpid()
        self._fd = fd
        self._sign_and_write = record_writer(key_hex, fd)

    def write(self, record: Header) -> None:
        """Write a record; a child that a test forked and that returned into the runner writes nothing."""
        if _getpid() == self._pid:
            self._sign_and_write(record)

    def fetch(self, test_id: str) -> List[Tuple[int, str, CodeType]]:
        """Ask for the code of a test that starts: (first line, name, code) of each function of its name."""
        if _getpid() != self._pid:
            return []
        self._sign_and_write({"open": test_id})
        (num_bytes,) = _LENGTH.unpack(self._receive(_LENGTH.size))
        return list(_loads(self._receive(num_bytes)))

    def _receive(self, num_bytes: int) -> bytes:
        data = b""
        while len(data) < num_bytes:
            part = _read(self._fd, num_bytes - len(data))
            if not part:
                raise EOFError("the supervisor is gone")
            data += part
        return data


class Opener:
    """The bodies of sealed tests in the tests' process."""

    def __init__(self, link: Link, is_sealed: bool) -> None:
        self._link = link
        self._is_sealed = is_sealed
        self._functions: Dict[Tuple[str, int, str], List[Any]] = {}
        self.reached: List[str] = []
        """Numbers that the end of the current test's body told."""

    def collect(self, paths: Set[str]) -> None:
        """Find the functions of tests in the files ``paths``, also inside of decorators."""
        if not self._is_sealed:
            return
        for function in gc.get_objects():
            if type(function) is _FunctionType and function.__code__.co_filename in paths:
                code = function.__code__
                self._functions.setdefault((code.co_filename, code.co_firstlineno, code.co_name), []).append(function)

    def open(self, test_id: str) -> None:
        """Give the test that starts now its body."""
        if not self._is_sealed:
            return
        self.reached.clear()
        for first_line, name, code in self._link.fetch(test_id):
            for function in self._functions.get((code.co_filename, first_line, name), ()):
                function.__globals__[REACHED] = self.reached.append
                function.__code__ = code


# --- the supervisor's side --------------------------------------------------------------------------------------------


def run(request: Dict[str, Any], testbed: str, run_tests: Callable[[Link], int]) -> int:
    """Supervise ``run_tests`` in a child; return its exit status, or end by the signal that ended it."""
    ours, theirs = socket.socketpair()
    key_hex = os.urandom(32).hex()
    pid = os.fork()
    if pid == 0:
        _become_child(ours, theirs, key_hex, run_tests)
    syscalls.set_dumpable(False)
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    theirs.close()
    supervisor = Supervisor(request, testbed, ours, key_hex)
    supervisor.seal_files()
    ours.sendall(b".")
    supervisor.compile_files()
    status = supervisor.serve(pid)
    if os.WIFSIGNALED(status):
        with contextlib.suppress(OSError):
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    return os.WEXITSTATUS(status)


def _become_child(ours: socket.socket, theirs: socket.socket, key_hex: str, run_tests: Callable[[Link], int]) -> None:
    status = 1
    try:
        ours.close()
        os.close(RECORD_FD)
        # A test that closes small numbers, writes to them or starts programs never reaches the supervisor.
        number = _FIRST_FD + int.from_bytes(os.urandom(1), "big")
        fd = fcntl.fcntl(theirs.fileno(), fcntl.F_DUPFD_CLOEXEC, number)
        theirs.close()
        if os.read(fd, 1) == b".":
            status = run_tests(Link(key_hex, fd))
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


class Supervisor:
    """The process between the tests and the host."""

    def __init__(self, request: Dict[str, Any], testbed: str, connection: socket.socket, key_hex: str) -> None:
        self._request = request
        self._testbed = testbed
        self._connection = connection
        self._reader = RecordReader(key_hex)
        self._files: Dict[str, SourceFile] = {}
        self._sealed: Dict[str, Sealed] = {}
        self._codes: Dict[str, Dict[Key, CodeType]] = {}
        self._order: Dict[str, int] = {}
        self._current = -1
        self._num_forged = 0
        self._num_bytes = 0
        self._unsent = bytearray()

    def seal_files(self) -> None:
        """Replace the test files on disk, before code of the tree runs."""
        if not self._request.get("is_sealed"):
            return
        ids = [test_id.partition("::") for test_id in self._request["test_ids"]]
        for path in dict.fromkeys(path for path, _, _ in ids):
            with contextlib.suppress(OSError), open(os.path.join(self._testbed, path), "rb") as opened:
                self._files[path] = SourceFile(opened.read())
        shared = {name for file in self._files.values() for name in file.names_elsewhere()}
        # A class may inherit a test from another file.
        names = {_function_name(test_id) for test_id in self._request["test_ids"]}
        for path, file in self._files.items():
            # The id of a file or a class selects tests that it does not name.
            named = all(map(_is_test_name, (_function_name(name) for own, _, name in ids if own == path)))
            with contextlib.suppress(OSError, RecursionError):
                self._seal(path, seal(file, names if named else None, shared))

    def _seal(self, path: str, sealed: Optional[Sealed]) -> None:
        place = os.path.join(self._testbed, path)
        if sealed is not None:
            self._sealed[path] = sealed
            os.unlink(place)
            with open(place, "xb") as file:
                file.write(sealed.stub)
        _remove_bytecode(place)

    def compile_files(self) -> None:
        """Compile the sealed tests, while the child starts; a file that does not compile has none."""
        for path, sealed in self._sealed.items():
            place = os.path.join(self._testbed, path)
            with contextlib.suppress(SyntaxError, ValueError, RecursionError):
                self._codes[path] = compile_sealed(sealed, self._files[path].source, place)

    def serve(self, pid: int) -> int:
        """Pass records on until the child has ended; return its wait status."""
        pidfd = syscalls.pidfd_open(pid)
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        poll.register(self._connection, select.POLLIN)
        self._connection.setblocking(False)
        is_ended = False
        while not is_ended:
            ready = poll.poll(_MAX_DELAY_MS if self._unsent else None)
            if not ready:
                self._send()
                continue
            is_ended = any(fd == pidfd for fd, _ in ready)
            is_open = self._drain()
            if not is_open:
                poll.unregister(self._connection)
                self._connection.close()
                break
        status = os.waitpid(pid, 0)[1]
        if self._num_forged > 1:
            self._keep({"num_forged": self._num_forged - 1})
        self._send()
        return status

    def _count_forged(self) -> None:
        """Count a record that no runner writes; the first is told at once, because a run may be ended early."""
        self._num_forged += 1
        if self._num_forged == 1:
            self._keep({"num_forged": 1})

    def _keep(self, record: Header) -> None:
        """Send ``record`` soon: to send each at once would wake three processes for each phase of a test."""
        line = json.dumps(record).encode() + b"\n"
        if len(line) > _MAX_RECORD_BYTES and not self._may_be_long(record):
            self._count_forged()
            return
        self._unsent += line
        if len(self._unsent) > _CHUNK_BYTES:
            self._send()

    def _may_be_long(self, record: Header) -> bool:
        """Return True for a list of tests, and for one of functions where the request asks for it."""
        return "selected" in record or ("functions" in record and bool(self._request["traced_paths"]))

    def _send(self) -> None:
        while self._unsent:
            del self._unsent[: os.write(RECORD_FD, self._unsent)]

    def _drain(self) -> bool:
        """Read what is there; False when every holder of the other end has closed it."""
        while True:
            try:
                data = self._connection.recv(_CHUNK_BYTES)
            except BlockingIOError:
                return True
            except OSError:
                return False
            if not data:
                return False
            self._num_bytes += len(data)
            if self._num_bytes > (_MAX_TRACED_BYTES if self._request["traced_paths"] else _MAX_RUN_BYTES):
                self._count_forged()
                return False
            for record in self._reader.feed(data):
                if record is None:
                    self._count_forged()
                    continue
                try:
                    self._hand_out(str(record["open"])) if "open" in record else self._pass_on(record)
                except (AttributeError, KeyError, TypeError):  # no record that a runner writes
                    self._count_forged()
            if self._reader.is_lost:
                return False
            if len(data) < _CHUNK_BYTES:
                return True

    def _hand_out(self, test_id: str) -> None:
        codes: List[Tuple[int, str, CodeType]] = []
        if self._is_in_order(test_id):
            self._current = self._order[test_id]
            bodies = [code for path in self._places(test_id) for code in self._codes.get(path, {}).items()]
            codes = [(*key, code) for key, code in bodies if key[1] == _function_name(test_id)]
        else:
            self._count_forged()
        data = marshal.dumps(codes)
        with contextlib.suppress(OSError):  # the child is gone
            self._connection.setblocking(True)
            self._connection.sendall(_LENGTH.pack(len(data)) + data)
            self._connection.setblocking(False)

    def _is_in_order(self, test_id: str) -> bool:
        return self._order.get(test_id, -1) >= max(self._current, 0)

    def _pass_on(self, record: Header) -> None:
        if not record.keys() <= _FIELDS or ("selected" in record and not self._announce(record["selected"])):
            self._count_forged()
            return
        number = record.pop("reached", None)
        if "outcome" in record and "check" not in record and self._request.get("is_sealed"):
            test_id, is_passed = str(record["id"]), record["outcome"] == "passed"
            # Without a phase there is only the error of a test that could not be collected.
            is_forged = is_passed if "phase" not in record else not self._is_in_order(test_id)
            is_claimed = is_passed and record.get("phase") == "call"
            if is_forged or (is_claimed and not self._is_reached(test_id, number)):
                record["is_forged"] = True
        self._keep(record)

    def _announce(self, test_ids: List[Any]) -> bool:
        """Note the order of the tests; False for a second list, and for ids that the request does not ask for.

        An id that nobody asked for could name a body before the test before it has been reported.
        """
        ids = list(map(str, test_ids))
        rows = {test_id.partition("[")[0] for test_id in ids if "[" in test_id}
        asked = set(self._request["test_ids"])
        if self._order or (asked and not (rows.isdisjoint(ids) and all(_is_asked(name, asked) for name in ids))):
            return False
        # Of an id that stands twice, the last place counts.
        self._order = {test_id: place for place, test_id in enumerate(ids)}
        return True

    def _is_reached(self, test_id: str, number: Any) -> bool:
        """Return True when ``number`` shows that the body came to its end, or the body shows nothing."""
        path, _, name = test_id.partition("[")[0].partition("::")
        home = self._home(path, name)
        wanted = self._sealed[home].wanted if home in self._sealed else {}
        numbers = [told for key, told in wanted.items() if key[1] == _function_name(test_id)]
        return not numbers or "" in numbers or number in numbers

    def _home(self, path: str, name: str, num_bases: int = 8) -> Optional[str]:
        """Return the file that defines a test, which its class may inherit; None when that cannot be told."""
        file = self._files.get(path)
        if file is None:
            return None
        if name in file.names:
            return path
        scope, _, function = name.rpartition("::")
        bases = [base for base in file.bases.get(scope, ()) if base not in _WITHOUT_TESTS]
        homes = [other for other, known in self._files.items() if bases and bases[0] in known.bases]
        if len(homes) != 1 or not num_bases:
            return None
        return self._home(homes[0], f"{bases[0]}::{function}", num_bases - 1)

    def _places(self, test_id: str) -> List[str]:
        """Return the sealed files that may hold the body of a test: its own, or any that its class may inherit from."""
        path, _, name = test_id.partition("[")[0].partition("::")
        places = [path]
        if path in self._files and name not in self._files[path].names:
            for place in places:  # grows: what is imported imports in turn
                imported = self._files[place].imported
                places += [other for other in self._files if other not in places and _module_name(other) in imported]
        return [place for place in places if place in self._sealed]


def _function_name(test_id: str) -> str:
    return test_id.partition("[")[0].rpartition("::")[2]


def _module_name(path: str) -> str:
    return os.path.basename(path)[: -len(".py")]


def _is_test_name(name: str) -> bool:
    return name.startswith("test") and name.isidentifier()


def _is_asked(test_id: str, asked: Set[str]) -> bool:
    """Return True when one of the ids ``asked`` selects ``test_id``: its own, its function, class, file or folder."""
    base = test_id.partition("[")[0]
    return test_id in asked or base in asked or any(base.startswith((name + "::", name + "/")) for name in asked)


def _remove_bytecode(place: str) -> None:
    folder, name = os.path.split(place[: -len(".py")])
    for path in glob.glob(os.path.join(glob.escape(folder), "__pycache__", glob.escape(name) + ".*.pyc")):
        os.unlink(path)
