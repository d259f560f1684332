"""Test files of JavaScript, each in a node process of its own, with a reporter of ours for each test framework.

Reads a request whose runner is ``tape``, ``mocha``, ``node_test``, ``vitest`` or ``jest``, and the signed lines of the
reporter (``node/reporter.cjs``); makes the records of a test run. Guarantees: this process runs no code of the tree; a
node process tells of tests of its own file only, ends before the next one starts, and writes no file of the tree; a
line without a valid signature, and a result after which a function of the framework or of ``assert`` is another one,
count as forged; a requested test without a result is an error where its process failed, and missing where the process
said that all was well.

Ids are ``path::title::title``, titles of suites and enclosing tests first, made fit for ids (:func:`clean`); ids that
a file has twice get a number (``#2``).
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from typing import IO, Any, Dict, List, Set

from .. import confinement, reaping, syscalls
from ..deadlines import Deadline, descendants, scheduled
from .start import first_line
from .supervisor import Link

_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "node")
_REPORTER = os.path.join(_FOLDER, "reporter.cjs")
_MAX_TITLE_CHARS = 160
_START_S = 20.0
"""Time of node for its start and the loading of a file."""
_END_S = 2.0
"""Time for the end of a process after its last test: some frameworks wait for timers."""
_CHUNK_BYTES = 1 << 16
_NUM_DIGITS = 32
_TYPESCRIPT = (".ts", ".tsx", ".mts", ".cts")
_SPACE = re.compile(r"\s+")
_ERROR = re.compile(r"^.*?\b(\w*Error\b.*|FATAL ERROR:.*|\w*Exception:.*)$", re.MULTILINE)
_MAX_KEPT_BYTES = 1 << 14
"""Of what a process says on standard error, to tell why it ended."""
_WITHOUT_TRAPS = "--disable-wasm-trap-handler"
_PROC_FILES = (
    "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/loadavg", "/proc/uptime", "/proc/version",
    "/proc/filesystems", "/proc/sys", "/proc/self/stat", "/proc/self/statm", "/proc/self/status",
)  # fmt: skip
"""Files that node and tests may read there; not ``mem``, ``maps`` and ``environ``."""
_UNSET = ("NODE_OPTIONS", "NODE_PATH", "NODE_V8_COVERAGE", "PYTHONPATH")


def clean(title: str) -> str:
    """Return ``title`` fit for an id: one line, at most 160 characters, without what separates the parts of ids."""
    text = _SPACE.sub(" ", title.encode(errors="replace").decode()).strip()
    text = text.replace("[", "(").replace("]", ")").replace("::", ":")
    return text[:_MAX_TITLE_CHARS] or "(no title)"


def run(request: Dict[str, Any], testbed: str, link: Link) -> int:
    """Run the files of the requested tests, one after the other; return 0 when all tests passed, else 1."""
    syscalls.set_dumpable(False)
    syscalls.set_child_subreaper()
    node = shutil.which("node", path=os.path.join(sys.prefix, "bin") + os.pathsep + os.environ.get("PATH", ""))
    if node is None:
        sys.stdout.write("there is no node in the environment, nor on this machine\n")
        return 127
    wanted = list(dict.fromkeys(request["test_ids"]))
    named = [test_id for test_id in wanted if "::" in test_id]
    if named:
        link.write({"selected": named})
    status, program = 0, [node, *_flags(node)]
    for path in dict.fromkeys(test_id.partition("::")[0] for test_id in wanted):
        own = {test_id for test_id in wanted if test_id == path or test_id.startswith(path + "::")}
        file = _File(program, path, own, request, testbed, link)
        file.run()
        status |= file.has_problem
    link.write({"finished": int(status)})
    return int(status)


def _flags(node: str) -> List[str]:
    """Return the flags of every process of ``node``: without them WebAssembly reserves more than a sandbox allows."""
    # An older node rejects the flag. `--help` would tell as well, in ten times the time.
    asked = [node, _WITHOUT_TRAPS, "--version"]
    quiet = subprocess.DEVNULL
    return [] if subprocess.run(asked, stdin=quiet, stdout=quiet, stderr=quiet).returncode else [_WITHOUT_TRAPS]


def _arguments(framework: str, path: str, testbed: str, modules: str) -> List[str]:
    """Return node's arguments for the test file ``path``; TypeScript outside of vitest and jest needs tsx."""
    if framework == "vitest":  # which forks the process of the tests itself
        return [os.path.join(_FOLDER, "vitest_host.mjs"), path]
    argv = ["--require", _REPORTER]
    is_typed = path.endswith(_TYPESCRIPT) or os.path.isfile(os.path.join(testbed, "tsconfig.json"))
    loaders = os.path.join(modules, "tsx", "dist")
    if framework != "jest" and is_typed and os.path.isdir(loaders):
        # The loader of modules gives files that `require` loads another cache, in which tape is another tape.
        is_required = framework == "tape"
        name = os.path.join("cjs", "index.cjs") if is_required else "loader.mjs"
        argv += ["--require" if is_required else "--import", os.path.join(loaders, name)]
    if framework == "node_test":
        argv += [f"--test-reporter={os.path.join(_FOLDER, 'events.mjs')}", "--test-reporter-destination=stdout"]
    if framework in ("mocha", "jest"):
        argv.append(os.path.join(_FOLDER, f"{framework}_main.cjs"))
    return [*argv, os.path.join(testbed, path) if framework == "mocha" else path]


def _confine(testbed: str, scratch: str) -> None:
    """Keep the tests from writing to the tree and from reading memory, their own included, where the kernel can.

    A file that one process writes could decide what another one tests, and the key lies in the memory of the tests.
    """
    places = [os.path.join("/", name) for name in os.listdir("/") if name != "proc"]
    is_inside = f"{testbed}/".startswith("/tmp/")
    with contextlib.suppress(OSError):
        ruleset = confinement.build_file_ruleset(
            [*places, *_PROC_FILES], [scratch, "/dev"] if is_inside else ["/tmp", "/dev"]
        )
        if ruleset is not None:
            syscalls.landlock_restrict(ruleset)
            os.close(ruleset)


class _File:
    """The run of one test file."""

    def __init__(
        self, node: List[str], path: str, wanted: Set[str], request: Dict[str, Any], testbed: str, link: Link
    ) -> None:
        (self._node, *self._flags), self._path, self._wanted = node, path, wanted
        self._request, self._testbed, self._link = request, testbed, link
        self._key = os.urandom(32)
        self._scratch = tempfile.mkdtemp(prefix="tests-")
        """Home and temporary files of the process: no other file's process knows its name."""
        self._number = 0
        self._rest = b""
        self._open: List[str] = []
        """Ids of tests that have started and not ended."""
        self._ids: Dict[str, int] = {}
        self._told: Set[str] = set()
        self._crash = ""
        self._crash_line = 0
        self._said = b""
        """Beginning of standard error."""
        self._is_done = False
        self.has_problem = False

    def run(self) -> None:
        """Run the file to its end or to a deadline."""
        if not os.path.isfile(os.path.join(self._testbed, self._path)):
            return
        received, sent = os.pipe()
        process = self._start(sent)
        os.close(sent)
        listener = threading.Thread(target=self._listen, args=(process.stderr,))
        listener.start()
        try:
            is_late = not self._read(received)
        finally:
            os.close(received)
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            status = process.wait()
            # A process that left the group would see, and could change, the files that later tests use.
            reaping.end_all(reaping.signal_descendants)
            listener.join()
            shutil.rmtree(self._scratch, ignore_errors=True)
        self._account(status, is_late)

    def _start(self, sent: int) -> "subprocess.Popen[bytes]":
        request = self._request
        modules = os.path.join(sys.prefix, "node_modules")
        setup = {
            "key": self._key.hex(), "fd": sent, "framework": request["runner"]["type"], "testbed": self._testbed,
            "modules": modules, "traced": request["traced_paths"], "scratch": self._scratch,
        }  # fmt: skip
        environment = {name: value for name, value in os.environ.items() if name not in _UNSET}
        environment.update({"NO_COLOR": "1", "CI": "1", "HOME": self._scratch, "TMPDIR": self._scratch})
        if not os.path.isdir("/node_modules"):  # a back end without a root of its own
            environment["NODE_PATH"] = modules
        process = subprocess.Popen(
            [self._node, *self._flags, *_arguments(setup["framework"], self._path, self._testbed, modules)],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[sent],
            cwd=self._testbed,
            env=environment,
            start_new_session=True,
            preexec_fn=lambda: _confine(self._testbed, self._scratch),
        )
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError), process.stdin:
            process.stdin.write(json.dumps(setup).encode())
        return process

    def _listen(self, stream: IO[bytes]) -> None:
        """Hand on what the process says on standard error, and keep its beginning."""
        with stream:
            while data := os.read(stream.fileno(), _CHUNK_BYTES):
                self._said += data[: _MAX_KEPT_BYTES - len(self._said)]
                with contextlib.suppress(OSError):
                    os.write(2, data)

    def _read(self, received: int) -> bool:
        """Read lines until the process closes its end; False when a deadline passed."""
        poll = select.poll()
        poll.register(received, select.POLLIN)
        deadline = self._deadline(_START_S)
        while True:
            remaining_s = deadline.remaining_s()
            if remaining_s <= 0:
                return self._is_done
            if not poll.poll(remaining_s * 1000 + 1):
                continue
            data = os.read(received, _CHUNK_BYTES)
            if not data:
                return True
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                self._take(line)
            if lines:
                deadline = self._deadline(_END_S if self._is_done else 0.0)

    def _deadline(self, more_s: float) -> Deadline:
        timeout_s = float(self._request["test_timeout_s"]) + more_s
        # This process has no children but the file's: the tests may run in a fork (vitest).
        return Deadline(timeout_s, lambda: scheduled(descendants()), before=scheduled(descendants()))

    # --- lines --------------------------------------------------------------------------------------------------------

    def _take(self, line: bytes) -> None:
        head, _, body = line.partition(b" ")
        digest = hmac.new(self._key, b"%d " % self._number + body, "sha256").hexdigest()[:_NUM_DIGITS]
        if not hmac.compare_digest(head, digest.encode()):
            self._link.write({"id": self._path, "is_forged": True})
            return
        self._number += 1
        record = json.loads(body)
        if "started" in record:
            self._open.append(self._id(record["started"]))
        elif "test" in record:
            self._end(record)
        elif "reached_for" in record:
            self._link.write({"reached_for": record["reached_for"], "path": record["path"]})
        elif "crash" in record:
            self._crash_line = self._crash_line if self._crash else self._line(record.get("places", ""))
            self._crash = self._crash or first_line(record["crash"])
        if "done" in record:
            self._is_done = True
            for test_id in sorted(self._told) if record.get("functions") else ():
                self._link.write({"id": test_id, "functions": record["functions"].split("\n")})

    def _id(self, titles: str) -> str:
        return "::".join((self._path, *map(clean, titles.split("\0"))))

    def _end(self, record: Dict[str, Any]) -> None:
        base = self._id(record["test"])
        if base in self._open:
            self._open.remove(base)
        self._ids[base] = self._ids.get(base, 0) + 1
        test_id = base if self._ids[base] == 1 else f"{base}#{self._ids[base]}"
        replaced, outcome = record.get("replaced", ""), record["outcome"]
        message = f"replaced while the tests ran: {replaced}" if replaced else first_line(record["message"])
        line = self._line(record.get("places", ""))
        self._tell(test_id, outcome, message, record["duration_s"], bool(replaced), line=line)
        if test_id != base and outcome != "passed":  # of tests with one title the worst counts
            self._tell(base, outcome, message, record["duration_s"], is_again=True, line=line)
        if self._is_wanted(test_id) and record.get("functions"):
            self._link.write({"id": test_id, "functions": record["functions"].split("\n")})

    def _line(self, places: str) -> int:
        """Return the line of the file of the tests in which a failure came up, from its stack; 0 where it has none."""
        frames = (place.rpartition(":") for place in places.split("\n"))
        return next((int(line) for path, _, line in frames if path == self._path and line.isdigit()), 0)

    def _is_wanted(self, test_id: str) -> bool:
        return test_id in self._wanted or self._path in self._wanted

    def _tell(
        self,
        test_id: str,
        outcome: str,
        message: str,
        duration_s: float,
        is_forged: bool = False,
        is_again: bool = False,
        line: int = 0,
    ) -> None:
        if not self._is_wanted(test_id) or (test_id in self._told and not is_again):
            return
        self._told.add(test_id)
        self.has_problem |= outcome not in ("passed", "skipped")
        call = {"outcome": outcome, "message": message, "line": line, "duration_s": duration_s, "is_forged": is_forged}
        self._link.write({"id": test_id, "phase": "call", **call})
        self._link.write({"id": test_id, "phase": "teardown", "outcome": "passed", "message": "", "duration_s": 0.0})

    def _account(self, status: int, is_late: bool) -> None:
        """Tell what became of tests without a result."""
        if is_late:
            message = "timed out"
        elif status == 0 and not self._crash:
            return
        else:
            ending = f"signal {-status}" if status < 0 else f"exit status {status}"
            error = _ERROR.search(self._said.decode(errors="replace"))
            why = f": {error[1]}" if error else ""
            message = self._crash or first_line(f"the process of its file ended with {ending}{why}")
        for test_id in self._open:
            self._tell(test_id, "failed", message, 0.0, line=self._crash_line)
        # A framework that counts failures ends with a status that says so.
        if is_late or self._crash or not self.has_problem:
            for test_id in sorted(self._wanted - self._told - {self._path}):
                self._tell(test_id, "error", message, 0.0)
        if self._path in self._wanted and not self._told:
            self._tell(self._path, "error", message, 0.0)
