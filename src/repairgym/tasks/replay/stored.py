"""Oracles and recordings in the layer store (``replays/``, ``recordings/``), made once and read by everybody.

Reads and makes oracles, and the recordings that they begin with: tasks of one release often record the same tests over
the same repaired code. Guarantees: a digest covers everything that decides its content; one process at a time makes
it, and the others wait for it; a layer that is removed while it is read is made again.
"""

import asyncio
import fcntl
import gzip
import hashlib
import json
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from repairgym.records import Task, TestRequest
from repairgym.sandbox.base import SandboxSpec
from repairgym.tasks.layers import gc
from repairgym.tasks.layers.store import LayerStore
from repairgym.tasks.replay.making import Recorder, make_oracle, why_not_replayed
from repairgym.tasks.replay.oracle import Oracle
from repairgym.tasks.replay.scripts import MAX_RECORDED_TESTS, Recording
from repairgym.tasks.replay.trees import MakeSpec

ORACLE_VERSION, RECORDING_VERSION = "10", "7"
_MAX_LOADED = 64
_POLL_S = 0.05


def oracle_digest(task: Task) -> str:
    """Return the digest of everything that decides the oracle of ``task``."""
    decides = {
        "base_files": task.base_files,
        "gold_files": task.gold_files,
        "plugins": task.plugins,
        "runner": task.runner.model_dump(mode="json"),
        "source_paths": task.source_paths,
        "tests": [task.fail_to_pass, task.pass_to_pass, task.test_paths],
        "versions": [ORACLE_VERSION, _recorder_digest(), task.base_tree, task.environment.digest],
    }
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()


def recording_digest(task: Task, spec: SandboxSpec, request: TestRequest, max_tests: int) -> str:
    """Return the digest of everything that decides a recording; the order of the tests does not."""
    decides = {
        "files": spec.files,
        "request": request.model_copy(update={"test_ids": tuple(sorted(request.test_ids))}).model_dump(mode="json"),
        "limits": [spec.limits.model_dump(mode="json"), max_tests],
        "versions": [RECORDING_VERSION, _recorder_digest(), task.base_tree, task.environment.digest],
    }
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()


@cache
def _recorder_digest() -> str:
    """Return the digest of the code that runs inside the sandbox: other code may record and observe otherwise."""
    digest = hashlib.sha256()
    for file in sorted(files("repairgym.tasks.replay.guest").iterdir(), key=lambda file: file.name):
        if file.name.endswith(".py"):
            digest.update(f"{file.name}\0".encode() + file.read_bytes())
    return digest.hexdigest()


class StoredContent:
    """Contents of one kind of layer: ``<kind>/<digest>/<name>.json.gz``."""

    def __init__(self, layers: LayerStore, kind: str, name: str) -> None:
        self._layers = layers
        self._kind = kind
        self._file = f"{name}.json.gz"

    def path(self, digest: str) -> Path:
        """Return the file of ``digest``, which may be missing."""
        return self._layers.root / self._kind / digest / self._file

    def read(self, digest: str) -> Any:
        """Return the content of ``digest``; None when it is missing."""
        path = self.path(digest)
        try:
            content = gzip.decompress(path.read_bytes())
        except FileNotFoundError:
            return None
        gc.note_use(path.parent)
        return json.loads(content)

    async def get(self, digest: str, make: Callable[[], Awaitable[Any]]) -> Any:
        """Return the content of ``digest``; ``make`` makes a missing one, which is not kept when it is empty."""
        if known := self.read(digest):
            return known
        async with self._alone(digest):
            if known := self.read(digest):
                return known
            if content := await make():
                data = gzip.compress(json.dumps(content).encode(), mtime=0)
                gc.let_go(self._layers.build_once(self._kind, digest, lambda place: self._write(place, data)))
        return content

    def _write(self, place: Path, data: bytes) -> None:
        (place / self._file).write_bytes(data)

    @asynccontextmanager
    async def _alone(self, digest: str) -> AsyncIterator[None]:
        """Hold the right to make one content; a process that dies gives it back."""
        path = self._layers.root / self._kind / f".{digest}.making"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w") as stream:
            while not _is_locked(stream.fileno()):  # noqa: ASYNC110
                await asyncio.sleep(_POLL_S)
            try:
                yield
            finally:
                path.unlink(missing_ok=True)


class _SharingRecorder:
    """A recorder for one task that reads and keeps recordings; one without a script may be that of a busy machine."""

    def __init__(self, task: Task, recorder: Recorder, recordings: StoredContent) -> None:
        self._task = task
        self._recorder = recorder
        self._recordings = recordings
        self.replay = recorder.replay

    async def record(self, spec: SandboxSpec, request: TestRequest, max_tests: int = MAX_RECORDED_TESTS) -> Recording:
        """See `Recorder.record`."""

        async def make() -> Any:
            recording = await self._recorder.record(spec, request, max_tests)
            return recording.to_json() if recording.scripts else {}

        digest = recording_digest(self._task, spec, request, max_tests)
        content = await self._recordings.get(digest, make)
        return Recording.from_json(content) if content else Recording((), {})


class OracleStore:
    """Oracles of many tasks, the last ones in memory."""

    def __init__(self, layers: LayerStore) -> None:
        self._oracles = StoredContent(layers, "replays", "oracle")
        self._recordings = StoredContent(layers, "recordings", "recording")
        self._loaded: OrderedDict[str, Oracle] = OrderedDict()

    def load(self, task: Task) -> Oracle | None:
        """Return the oracle of ``task`` if it is there."""
        digest = oracle_digest(task)
        oracle = self._loaded.get(digest)
        if oracle is None and (content := self._oracles.read(digest)) is not None:
            oracle = Oracle.from_json(content)
        if oracle is not None:
            self._keep(digest, oracle)
        return oracle

    def _keep(self, digest: str, oracle: Oracle) -> None:
        self._loaded[digest] = oracle
        self._loaded.move_to_end(digest)
        while len(self._loaded) > _MAX_LOADED:
            self._loaded.popitem(last=False)

    def lacks(self, task: Task) -> bool:
        """Return True when the oracle of ``task`` is still to be made."""
        return not why_not_replayed(task) and not self._oracles.path(oracle_digest(task)).is_file()

    async def get(self, task: Task, recorder: Recorder, make_spec: MakeSpec) -> Oracle:
        """Return the oracle of ``task``; make a missing one.

        Raises:
            SandboxError: a sandbox could not do its work.
        """
        if oracle := self.load(task):
            return oracle

        async def make() -> Any:
            return (await make_oracle(task, _SharingRecorder(task, recorder, self._recordings), make_spec)).to_json()

        digest = oracle_digest(task)
        oracle = Oracle.from_json(await self._oracles.get(digest, make))
        self._keep(digest, oracle)
        return oracle


def _is_locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
