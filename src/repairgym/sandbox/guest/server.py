"""The trusted process of a sandbox: answers the host's requests one at a time until the host hangs up.

Reads frames (:mod:`.wire`) with an ``op``, makes answers; a back end adds its own operations through
:attr:`Place.operations`. Guarantees: one request at a time, and no untrusted process is alive between two requests;
untrusted code gets none of this process's descriptors; a failure of this process is an ``error`` in the answer, a
failure of untrusted code is a result.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple, Union

from . import confinement, differences, files, image_root, process, reaping, rootfs, sessions, wire
from .runners import NODE_RUNNERS
from .wire import RECORD_FD

_RECORD_BYTES = 1 << 26
_TEST_OUTPUT_BYTES = 1 << 16
_RUNNER_BOOT = "import sys; sys.path[0] = {guest!r}; from {package}.runners import start; start.main_from_stdin()"
Answer = Tuple[Dict[str, Any], Sequence[bytes]]
Operation = Callable[[Dict[str, Any], List[bytes]], Answer]


class Place(NamedTuple):
    """The parts of a sandbox that differ between back ends; the defaults are those of one with a root of its own."""

    environment: Dict[str, str]
    before: str
    """The tree as it was at the start."""
    layers: Callable[[], Sequence[str]] = tuple
    """Function that lists the copy-on-write layers between the start and now; paths that none of them names are
    unchanged. No layers: compare everything."""
    testbed: str = rootfs.TESTBED
    python: str = rootfs.PYTHON
    guest: str = os.path.dirname(rootfs.GUEST)
    """Folder that holds the guest package."""
    signal_all: reaping.SignalAll = reaping.signal_namespace
    remove_ipc_objects: Callable[[], None] = reaping.remove_ipc_objects
    """Function that removes what a command left in an IPC namespace of the sandbox's own."""
    confine: Callable[[Dict[str, Any]], None] = confinement.confine
    """Function that limits the calling (child) process and drops its privileges."""
    run_warm: Optional[Callable[[bytes, str], int]] = None
    """Function that runs a test request in a fork of this process; None when the runners are not loaded here."""
    root: str = "/"
    """Root of commands."""
    accounting: reaping.Accounting = reaping.Accounting()
    """Counter and bounds of a command's untrusted processes."""
    operations: Dict[str, Operation] = {}
    """Operations of this back end alone, by name."""


class Server:
    """A server of one sandbox over ``connection``."""

    def __init__(self, connection: socket.socket, place: Place, limits: Dict[str, Any]) -> None:
        self._connection = connection
        self._place = place
        self._limits = limits
        self._operations: Dict[str, Operation] = {
            "exec": self._exec,
            "python": self._python,
            "session": self._session,
            "tests": self._tests,
            "read": self._read,
            "write": self._write,
            "changed": self._changed,
            "list": self._list,
            "diff": self._diff,
            **place.operations,
        }

    def serve(self) -> None:
        """Answer requests until the host hangs up."""
        try:
            while True:
                header, blobs = wire.receive(self._connection)
                answer, parts = self._answer(header, blobs)
                wire.send(self._connection, answer, parts)
        except (EOFError, ConnectionError):
            return

    def _answer(self, header: Dict[str, Any], blobs: List[bytes]) -> Answer:
        try:
            return self._operations[header["op"]](header, blobs)
        except EOFError:
            raise
        except Exception as error:
            return wire.describe_error(error), ()

    def _run(
        self,
        body: Callable[[], int],
        stdin: Union[bytes, Callable[[], bytes]],
        timeout_s: float,
        limits: List[int],
        bounds: Dict[str, Any],
        root: str,
        make_cut: Callable[[], Optional[process.Cut]] = lambda: None,
    ) -> process.Finished:
        def prepare() -> None:
            if root != "/":
                image_root.enter(root)
            self._place.confine(bounds)

        finished = process.run(
            body,
            prepare=prepare,
            stdin=stdin,
            timeout_s=timeout_s,
            limits=limits,
            watched=self._connection.fileno(),
            signal_all=self._place.signal_all,
            accounting=self._place.accounting,
            make_cut=make_cut,
        )
        with contextlib.suppress(OSError):  # a kernel or an engine without these objects shows no list of them
            self._place.remove_ipc_objects()
        return finished

    def _command_bounds(self) -> Dict[str, Any]:
        # Programs that reserve far more addresses than they use (JVM, node) need no bound on addresses where the kernel
        # bounds the memory. Tests of Python keep both bounds: a greedy one gets a MemoryError and does not end the run.
        is_counted = self._place.accounting.has_memory_bound
        return {**self._limits, "memory_bytes": None} if is_counted else self._limits

    def _exec(self, header: Dict[str, Any], blobs: List[bytes]) -> Answer:
        place = self._place
        environment = {**place.environment, **header["env"]}

        def body() -> int:
            os.close(RECORD_FD)
            return execute(header["argv"], _locate(header["cwd"], place.testbed), environment)

        return self._command(body, blobs[0], header["timeout_s"], place.root)

    def _python(self, header: Dict[str, Any], _: List[bytes]) -> Answer:
        place, text = self._place, header["text"]

        def body() -> int:
            os.close(RECORD_FD)
            if place.run_warm is None:
                # Without the working folder on the path, where code of the tree lies.
                boot = f"import sys; del sys.path[0]\n{text}"
                return execute([place.python, "-c", boot], place.testbed, place.environment)
            os.chdir(place.testbed)
            sys.path[:] = [path for path in sys.path if path not in ("", place.guest)]
            exec(compile(text, "<program>", "exec", dont_inherit=True), {"__name__": "__main__"})  # noqa: S102 - ours
            sys.stdout.flush()
            return 0

        return self._command(body, lambda: wire.receive(self._connection)[1][0], header["timeout_s"], "/")

    def _command(
        self, body: Callable[[], int], stdin: Union[bytes, Callable[[], bytes]], timeout_s: float, root: str
    ) -> Answer:
        num_bytes = self._limits["output_bytes"]
        finished = self._run(body, stdin, timeout_s, [num_bytes, num_bytes, 0], self._command_bounds(), root)
        return _command_answer(finished), [finished.stdout.value(), finished.stderr.value()]

    def _session(self, header: Dict[str, Any], blobs: List[bytes]) -> Answer:
        stdin, command, state = sessions.split_request(blobs)
        environment = sessions.starting_environment(state, {**self._place.environment, **header["env"]})
        text = sessions.restoring_text(state, command, header["last_status"])

        def body() -> int:
            sessions.attach(text, RECORD_FD)
            return execute(sessions.command_line(), self._place.testbed, environment)

        num_bytes = self._limits["output_bytes"]
        limits = [num_bytes, num_bytes, sessions.STATE_BYTES]
        finished = self._run(body, stdin, header["timeout_s"], limits, self._command_bounds(), self._place.root)
        saved = sessions.parse_state(finished.records.value(), finished.records.is_truncated)
        answer = {**_command_answer(finished), "is_state_restored": saved is None, "cwd": saved.cwd if saved else ""}
        return answer, [finished.stdout.value(), finished.stderr.value(), saved.text if saved else b""]

    def _tests(self, header: Dict[str, Any], blobs: List[bytes]) -> Answer:
        place, boot = self._place, _RUNNER_BOOT.format(guest=self._place.guest, package=__package__)
        run_warm = None if header["is_cold"] else place.run_warm

        def body() -> int:
            os.dup2(1, 2)
            if run_warm is not None:
                return run_warm(blobs[0], place.testbed)
            return execute([place.python, "-c", boot, place.testbed], place.testbed, place.environment)

        return self._run_tests(body, blobs[0] if run_warm is None else b"", header, "/")

    def _run_tests(self, body: Callable[[], int], stdin: bytes, header: Dict[str, Any], root: str) -> Answer:
        def make_cut() -> Optional[process.Cut]:
            return FirstFailure(json.loads(wire.receive(self._connection)[1][0])) if header["num_late"] else None

        limits = [_TEST_OUTPUT_BYTES, _TEST_OUTPUT_BYTES, _RECORD_BYTES]
        bounds = self._command_bounds() if header["runner"] in NODE_RUNNERS else self._limits
        finished = self._run(body, stdin, header["timeout_s"], limits, bounds, root, make_cut)
        ending = {**_ending(finished), "is_stopped": finished.is_stopped}
        if finished.is_stopped:
            ending.update(signal=None, exit_status=None)  # the end was ours
        use = {"peak_memory_bytes": finished.usage.peak_memory_bytes, "disk_bytes": self._written_bytes()}
        return {**ending, **use}, [finished.stdout.value(), finished.records.value()]

    def _written_bytes(self) -> Optional[int]:
        """Return the bytes in the file system of the testbed; None when it is not only this sandbox's."""
        status = os.statvfs(self._place.testbed)
        is_own = status.f_blocks * status.f_frsize <= self._limits["disk_bytes"]
        return (status.f_blocks - status.f_bfree) * status.f_frsize if is_own else None

    def _read(self, header: Dict[str, Any], _: List[bytes]) -> Answer:
        path = files.resolve(self._place.testbed, header["path"])
        return {}, [files.read_regular(path, self._limits["disk_bytes"])]

    def _write(self, header: Dict[str, Any], blobs: List[bytes]) -> Answer:
        files.write(self._place.testbed, header["path"], blobs[0])
        return {}, ()

    def _changed(self, _: Dict[str, Any], __: List[bytes]) -> Answer:
        place = self._place
        changes = differences.find_changes(place.before, place.testbed, place.layers(), self._limits["disk_bytes"])
        present = {path: content for path, content in changes.items() if content is not None}
        deleted = [path for path in changes if path not in present]
        return {"present": list(present), "deleted": deleted}, list(present.values())

    def _list(self, header: Dict[str, Any], _: List[bytes]) -> Answer:
        entries = differences.list_entries(self._place.testbed, header["path"], header["is_recursive"])
        return {"entries": entries}, ()

    def _diff(self, _: Dict[str, Any], __: List[bytes]) -> Answer:
        return differences.find_differences(self._place.before, self._place.testbed, self._place.layers())


class FirstFailure:
    """The cut of a test run's records after the end of the first test of ``test_ids`` that did not pass."""

    def __init__(self, test_ids: List[str]) -> None:
        self._test_ids = frozenset(test_ids)
        self._rest = b""
        self._failed: Set[str] = set()

    def __call__(self, data: bytes) -> Optional[int]:
        """See :data:`.process.Cut`."""
        start = -len(self._rest)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            start += len(line) + 1
            if self._is_end(line):
                return start
        return None

    def _is_end(self, line: bytes) -> bool:
        try:
            record = dict(json.loads(line))
        except (ValueError, TypeError):
            return False
        test_id = str(record.get("id"))
        if "outcome" not in record or self._test_ids.isdisjoint((test_id, test_id.partition("[")[0])):
            return False
        if record["outcome"] != "passed":
            self._failed.add(test_id)
        return record.get("phase", "teardown") == "teardown" and test_id in self._failed


def _locate(path: str, testbed: str) -> str:
    """Replace ``/testbed`` in ``path`` by the testbed's real place."""
    if path == "/testbed" or path.startswith("/testbed/"):
        return testbed + path[len("/testbed") :]
    return os.path.join(testbed, path)


def _ending(finished: process.Finished) -> Dict[str, Any]:
    status = finished.status
    return {
        "exit_status": os.WEXITSTATUS(status) if status is not None and os.WIFEXITED(status) else None,
        "signal": os.WTERMSIG(status) if status is not None and os.WIFSIGNALED(status) else None,
        "is_timed_out": status is None,
        "duration_s": finished.duration_s,
        "is_starved": finished.is_starved,
    }


def _command_answer(finished: process.Finished) -> Dict[str, Any]:
    return {
        **_ending(finished),
        "num_stdout_bytes": finished.stdout.num_bytes,
        "num_stderr_bytes": finished.stderr.num_bytes,
        "is_truncated": finished.stdout.is_truncated or finished.stderr.is_truncated,
        "waited_s": finished.waited_s,
        "cpu_s": finished.usage.cpu_s,
        "peak_memory_bytes": finished.usage.peak_memory_bytes,
        "is_out_of_memory": finished.usage.is_out_of_memory,
    }


def execute(argv: List[str], cwd: str, environment: Dict[str, str]) -> int:
    """Become ``argv``; return a shell-like exit status when that fails."""
    try:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.chdir(cwd)
        os.execvpe(argv[0], argv, environment)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"cannot run {argv[0]!r} in {cwd!r}: {error}\n")
        sys.stderr.flush()
        return 127 if isinstance(error, FileNotFoundError) else 126
