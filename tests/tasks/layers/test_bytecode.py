from __future__ import annotations

from pathlib import Path

import pytest

from repairgym.errors import SandboxError
from repairgym.records import TestRequest, TestRun
from repairgym.sandbox.base import SandboxSpec
from repairgym.tasks.layers.bytecode import tree_with_bytecode, twin_digest
from repairgym.tasks.layers.store import LayerStore
from repairgym.testing.scripted import ScriptedBackend


class CollectedStore(LayerStore):
    """A store whose layers are removed by another process as soon as it was asked for them."""

    def has(self, kind: str, digest: str) -> bool:
        return True


@pytest.mark.asyncio
async def test_a_twin_that_is_removed_meanwhile_is_collected_again(tmp_path: Path) -> None:
    tree, environment = tmp_path / "tree", tmp_path / "environment"
    spec, store = SandboxSpec(environment=environment, tree=tree), CollectedStore(tmp_path / "layers")
    backend = ScriptedBackend(lambda files, request: TestRun(results={}, exit_status=0), num_failures=1)
    request = TestRequest(test_ids=("test_a.py",), timeout_s=1.0, test_timeout_s=1.0)
    with pytest.raises(SandboxError, match="told to fail"):
        await tree_with_bytecode(store, backend, spec, request, 1.0)
    digest = twin_digest(tree, environment)
    twin = store.build_once("bytecode", digest, lambda place: (place / "a.py").touch())
    assert await tree_with_bytecode(store, backend, spec, request, 1.0) == twin
