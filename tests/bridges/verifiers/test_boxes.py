"""A sandbox for harnesses of verifiers: what it forwards, what it grades, and whose packages it rejects."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from repairgym.bridges.verifiers.boxes import Box, script_requirements
from repairgym.config.rollout import RolloutConfig
from repairgym.config.sandbox import LayersConfig
from repairgym.errors import InputError, RepairInSightError, SandboxError
from repairgym.inference.loading import load_tokenizer, shipped_base
from repairgym.inference.renderer import ChatRenderer
from repairgym.records import Provenance, VerdictKind
from repairgym.rollout.runner import Runner
from repairgym.sandbox.base import SandboxSpec, Snapshot
from repairgym.tasks.build.validation import TaskLayers
from repairgym.tasks.layers.store import LayerStore
from repairgym.testing.scripted import ScriptedBackend, ScriptedSandbox, scripted_answer, scripted_task

SCRIPT = '# /// script\n# requires-python = ">=3.10"\n# dependencies = ["openai", "mcp==2.0.0"]\n# ///\nprint()\n'


class ListeningSandbox(ScriptedSandbox):
    """A scripted sandbox whose ports are those of this machine."""

    async def listen(self, port: int) -> socket.socket:
        return socket.create_server(("127.0.0.1", 0))


class ListeningBackend(ScriptedBackend):
    """A maker of such sandboxes."""

    async def create(self, spec: SandboxSpec, *, snapshot: Snapshot | None = None) -> ScriptedSandbox:
        self.sandboxes.append(ListeningSandbox(spec.files, scripted_answer("no")))
        return self.sandboxes[-1]


@pytest.fixture
def backend() -> ScriptedBackend:
    return ListeningBackend(scripted_answer("no"))


@pytest.fixture
def box(tmp_path: Path, backend: ScriptedBackend) -> Box:
    renderer = ChatRenderer(load_tokenizer(shipped_base()))
    runner = Runner(RolloutConfig(), backend, lambda _: TaskLayers(tmp_path, tmp_path), renderer)
    store = LayerStore(tmp_path / "layers", config=LayersConfig(is_index_allowed=False))
    task = scripted_task().model_copy(update={"provenance": Provenance(package="tiny", version="1", sdist_sha256="")})
    return Box(runner, store, task, 60.0)


def place_layer(box: Box, requirements: tuple[str, ...], distribution: str) -> None:
    """Put a layer where the store would have installed it."""
    from repairgym.tasks.layers import agents

    def build(place: Path) -> None:
        (place / f"lib/python3/site-packages/{distribution}-1.dist-info").mkdir(parents=True)
        (place / f"lib/python3/site-packages/{distribution}-1.dist-info/METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1\n"
        )

    box._store.build_once("agents", agents.layer_digest(requirements, ()), build)


def test_requirements_are_those_of_the_script() -> None:
    assert script_requirements(SCRIPT) == ("openai", "mcp==2.0.0")
    assert script_requirements("# /// script\n# ///\n") == ()
    for broken in ("print()\n", "# /// script\nprint()\n", "# /// script\n# = 3\n# ///\n"):
        with pytest.raises(InputError, match="PEP 723"):
            script_requirements(broken)


@pytest.mark.asyncio
async def test_the_tree_as_it_is_left_is_graded(box: Box, backend: ScriptedBackend) -> None:
    assert (await box.run(("true",), {})).exit_status == 0
    backend.sandboxes[0].files["m.py"] = "def f(a, b):\n    return a <= b\n"
    verdict, patch = await box.grade()
    assert verdict.kind is VerdictKind.PASSED
    assert "+    return a <= b" in patch
    await box.close()


@pytest.mark.asyncio
async def test_an_untouched_tree_fails(box: Box) -> None:
    await box.run(("true",), {})
    verdict, patch = await box.grade()
    assert (verdict.kind, patch) == (VerdictKind.FAILED, "")
    await box.close()


@pytest.mark.asyncio
async def test_a_port_inside_leads_to_the_model_and_ends_with_the_box(box: Box) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"said " + await reader.readline())
        await writer.drain()
        writer.close()

    model = await asyncio.start_server(answer, "127.0.0.1", 0)
    outside = f"http://127.0.0.1:{model.sockets[0].getsockname()[1]}/v1"
    inside = box.forward(outside)
    assert inside == box.forward(outside) != outside
    assert inside.endswith("/v1")
    await box.open_ports()
    address = box._servers[0].sockets[0].getsockname()[:2]
    reader, writer = await asyncio.open_connection(*address)
    writer.write(b"hello\n")
    assert await reader.read() == b"said hello\n"
    writer.close()
    await box.close()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(*address)
    with pytest.raises(SandboxError, match="has ended"):
        await box.run(("true",), {})
    model.close()


@pytest.mark.asyncio
async def test_packages_that_hold_the_repair_are_rejected(box: Box) -> None:
    place_layer(box, ("good",), "good")
    place_layer(box, ("bad",), "tiny")
    await box.install(("good",))
    with pytest.raises(RepairInSightError, match="leave the tasks of this package out"):
        await box.install(("bad",))
    await box.run(("true",), {})
    place_layer(box, ("late",), "late")
    with pytest.raises(SandboxError, match="second program"):
        await box.install(("late",))
    await box.close()
