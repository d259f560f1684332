"""A small package with tests, recorded and replayed in real sandboxes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from repairgym.config.sandbox import SandboxConfig
from repairgym.records import TestRequest
from repairgym.sandbox.base import SandboxBackend, SandboxSpec
from repairgym.sandbox.probe import create_backend
from repairgym.tasks.replay.scripts import Recording, Replay, Script, record, replay

Files = dict[str, str]


class Site:
    """Records tests over files, and replays scripts over other ones."""

    def __init__(self, backend: SandboxBackend, environment: Path, tree: Path) -> None:
        self.backend = backend
        self._environment = environment
        self._tree = tree

    def spec(self, files: Files) -> SandboxSpec:
        return SandboxSpec(environment=self._environment, tree=self._tree, files={**files})

    async def record(self, package: str, tests: str, **more: str) -> Recording:
        request = TestRequest(test_ids=("tests/test_shop.py",), **more)
        return await record(
            self.backend,
            self.spec({"shop.py": package, "tests/test_shop.py": tests, "tests/data.txt": "3\n4\n"}),
            request,
        )

    async def replay(self, package: str, *scripts: Script, **more: object) -> Replay:
        more = {"timeout_s": 60.0, **more}
        return await replay(self.backend, self.spec({"shop.py": package}), scripts, ("",), **more)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory, small_environment: Path) -> AsyncIterator[Site]:
    backend = create_backend(SandboxConfig())
    tree = tmp_path_factory.mktemp("tree")
    yield Site(backend, small_environment, tree)
    await backend.close()


@pytest.fixture
def values() -> Callable[[Replay, str], list[str]]:
    """Returns the asserted values of one script."""

    def read(seen: Replay, name: str) -> list[str]:
        return [item.value for item in seen.observations[name] if item.is_asserted]

    return read
