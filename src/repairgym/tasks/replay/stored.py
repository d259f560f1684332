"""Oracles in the layer store: ``replays/<digest>/oracle.json.gz``, made once and read by everybody.

Reads and makes oracles. Guarantees: the digest covers everything that decides an oracle; one process at a time makes
it, and the others wait for it; a layer that is removed while it is read is made again.
"""

import asyncio
import fcntl
import gzip
import hashlib
import json
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from importlib.resources import files
from pathlib import Path

from repairgym.records import Task
from repairgym.tasks.layers import gc
from repairgym.tasks.layers.store import LayerStore
from repairgym.tasks.replay.making import MakeSpec, Recorder, make_oracle, why_not_replayed
from repairgym.tasks.replay.oracle import Oracle

ORACLE_VERSION = "5"
_KIND, _FILE = "replays", "oracle.json.gz"
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


@cache
def _recorder_digest() -> str:
    """Return the digest of the code that runs inside the sandbox: other code may record and observe otherwise."""
    digest = hashlib.sha256()
    for file in sorted(files("repairgym.tasks.replay.guest").iterdir(), key=lambda file: file.name):
        if file.name.endswith(".py"):
            digest.update(f"{file.name}\0".encode() + file.read_bytes())
    return digest.hexdigest()


class OracleStore:
    """Oracles of many tasks, the last ones in memory."""

    def __init__(self, layers: LayerStore) -> None:
        self._layers = layers
        self._loaded: OrderedDict[str, Oracle] = OrderedDict()

    def load(self, task: Task) -> Oracle | None:
        """Return the oracle of ``task`` if it is there."""
        digest = oracle_digest(task)
        oracle = self._loaded.get(digest) or self._read(digest)
        if oracle is not None:
            self._loaded[digest] = oracle
            self._loaded.move_to_end(digest)
            while len(self._loaded) > _MAX_LOADED:
                self._loaded.popitem(last=False)
        return oracle

    def lacks(self, task: Task) -> bool:
        """Return True when the oracle of ``task`` is still to be made."""
        return not why_not_replayed(task) and not self._path(oracle_digest(task)).is_file()

    async def get(self, task: Task, recorder: Recorder, make_spec: MakeSpec) -> Oracle:
        """Return the oracle of ``task``; make a missing one.

        Raises:
            SandboxError: a sandbox could not do its work.
        """
        if oracle := self.load(task):
            return oracle
        digest = oracle_digest(task)
        async with self._alone(digest):
            if oracle := self.load(task):
                return oracle
            oracle = await make_oracle(task, recorder, make_spec)
            content = gzip.compress(json.dumps(oracle.to_json()).encode(), mtime=0)
            layer = self._layers.build_once(_KIND, digest, lambda place: _write(place, content))
        gc.let_go(layer)
        return self.load(task) or oracle

    def _path(self, digest: str) -> Path:
        return self._layers.root / _KIND / digest / _FILE

    def _read(self, digest: str) -> Oracle | None:
        path = self._path(digest)
        try:
            content = gzip.decompress(path.read_bytes())
        except FileNotFoundError:
            return None
        gc.note_use(path.parent)
        return Oracle.from_json(json.loads(content))

    @asynccontextmanager
    async def _alone(self, digest: str) -> AsyncIterator[None]:
        """Hold the right to make one oracle; a process that dies gives it back."""
        path = self._layers.root / _KIND / f".{digest}.making"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w") as stream:
            while not _is_locked(stream.fileno()):  # noqa: ASYNC110
                await asyncio.sleep(_POLL_S)
            try:
                yield
            finally:
                path.unlink(missing_ok=True)


def _is_locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _write(place: Path, content: bytes) -> None:
    (place / _FILE).write_bytes(content)
