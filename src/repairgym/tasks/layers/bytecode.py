"""Trees with byte-code next to the sources, so that sandboxes do not compile the same files thousands of times.

Reads a pinned tree. Makes its twin with ``__pycache__`` folders (pytest's rewritten tests included), which a test
collection inside a sandbox writes. Guarantees: the sources of the twin equal those of the pinned tree, time stamps
included; the byte-code of an overwritten file is absent from a sandbox (`stale_bytecode`), so that neither the gold
code nor a hidden test can be read in compiled form.
"""

import glob
import hashlib
import io
import shutil
import tarfile
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from repairgym.errors import TaskError
from repairgym.records import TestRequest
from repairgym.sandbox.base import SandboxBackend, SandboxLimits, SandboxSpec
from repairgym.tasks.layers.store import LayerStore

MAX_BYTECODE_BYTES = 64 << 20
_COLLECT = """
import os, sys, tarfile
# As in a run: a plugin that is named and found as well ends pytest.
os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
import pytest

sys.dont_write_bytecode = False
sys.path[:0] = sys.argv[1].split(os.pathsep)
archive, errors, null = os.dup(1), os.dup(2), os.open(os.devnull, os.O_WRONLY)
os.dup2(null, 1)
os.dup2(null, 2)
try:
    pytest.main(["-c", os.devnull, "--rootdir", ".", "-p", "no:cacheprovider", "--collect-only", "-q",
                 "--continue-on-collection-errors", *sys.argv[2:]])
except BaseException as error:
    os.write(errors, repr(error).encode("utf-8", "replace"))
    raise
with os.fdopen(archive, "wb") as stream, tarfile.open(fileobj=stream, mode="w|") as tar:
    for folder, _, names in os.walk("."):
        if os.path.basename(folder) == "__pycache__":
            for name in names:
                tar.add(os.path.join(folder, name))
"""


async def tree_with_bytecode(
    store: LayerStore, backend: SandboxBackend, spec: SandboxSpec, request: TestRequest, timeout_s: float
) -> Path:
    """Return the twin of ``spec.tree`` with the byte-code for ``request``; TaskError if the collection fails."""
    digest = twin_digest(spec.tree, spec.environment)
    # Found and marked as used in one step: a twin that is removed in between would be built from nothing.
    if twin := store.find("bytecode", digest):
        return twin
    archive = await _collect(backend, spec, request, timeout_s)
    return store.build_once("bytecode", digest, lambda place: _fill(place, spec.tree, archive))


def twin_digest(tree: Path, environment: Path) -> str:
    """Return the digest of the twin of the layers ``tree`` and ``environment``."""
    return hashlib.sha256(f"{tree.name}:{environment.name}".encode()).hexdigest()


def stale_bytecode(tree: Path, files: Iterable[str]) -> dict[str, str | None]:
    """Return whiteouts for the byte-code in ``tree`` of overwritten source files."""
    return dict.fromkeys((stale for path in files if path.endswith(".py") for stale in _bytecode_of(tree, path)), None)


@lru_cache(maxsize=10_000)
def _bytecode_of(tree: Path, path: str) -> tuple[str, ...]:
    source = tree / path
    compiled = (source.parent / "__pycache__").glob(f"{glob.escape(source.stem)}.*.pyc")
    return tuple(file.relative_to(tree).as_posix() for file in compiled)


async def _collect(backend: SandboxBackend, spec: SandboxSpec, request: TestRequest, timeout_s: float) -> bytes:
    limits = SandboxLimits(**{**spec.limits.model_dump(), "output_bytes": MAX_BYTECODE_BYTES})
    sandbox = await backend.create(spec.model_copy(update={"limits": limits}))
    paths = ":".join(f"/testbed/{path}" for path in request.source_paths)
    plugins = [part for plugin in request.plugins for part in ("-p", plugin)]
    try:
        done = await sandbox.exec(("python", "-c", _COLLECT, paths, *plugins, *request.test_ids), timeout_s=timeout_s)
    finally:
        await sandbox.close()
    if done.exit_status != 0 or done.is_truncated:
        tail = done.stderr[-300:].decode(errors="replace")
        raise TaskError(f"collecting {list(request.test_ids)} failed with exit status {done.exit_status}: {tail}")
    return done.stdout


def _fill(place: Path, tree: Path, archive: bytes) -> None:
    shutil.copytree(tree, place, dirs_exist_ok=True, symlinks=True)
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(place, filter="data")
