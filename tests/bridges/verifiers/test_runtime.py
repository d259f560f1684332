"""What verifiers asks of a runtime, of a real sandbox: programs, files, ways to the model and nowhere else, an end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from repairgym.bridges.verifiers.boxes import Box
from repairgym.config.pipeline import GradingConfig
from repairgym.config.rollout import RolloutConfig
from repairgym.config.sandbox import LayersConfig
from repairgym.inference.loading import load_tokenizer, shipped_base
from repairgym.inference.renderer import ChatRenderer
from repairgym.records import VerdictKind
from repairgym.rollout.runner import Runner
from repairgym.sandbox.backends.namespace import NamespaceBackend
from repairgym.tasks.build.validation import TaskLayers
from repairgym.tasks.layers.store import LayerStore
from repairgym.testing.scripted import scripted_task

pytestmark = [pytest.mark.verifiers, pytest.mark.asyncio]
ASK = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=5).read().decode())"
Open = Callable[..., AbstractAsyncContextManager]


@pytest.fixture
def open_runtime(tmp_path: Path, small_environment: Path) -> Open:
    """``async with open_runtime(time_limit_s) as runtime``."""
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "m.py").write_text("def f(a, b):\n    return a < b\n")
    (tree / "test_m.py").write_text("from m import f\ndef test_f():\n    assert f(1, 1)\n")

    @asynccontextmanager
    async def opened(time_limit_s: float = 60.0) -> AsyncIterator:
        from repairgym.bridges.verifiers.plugin import SandboxRuntime

        config = RolloutConfig(grading=GradingConfig(is_replayed=False, num_canaries=0))
        renderer, backend = ChatRenderer(load_tokenizer(shipped_base())), NamespaceBackend()
        runner = Runner(config, backend, lambda _: TaskLayers(small_environment, tree), renderer)
        store = LayerStore(tmp_path / "layers", config=LayersConfig(is_index_allowed=False))
        runtime = SandboxRuntime(Box(runner, store, scripted_task(), time_limit_s))
        try:
            await runtime.start()
            yield runtime
        finally:
            await runtime.stop()
            await backend.close()

    return opened


@pytest.fixture
def model() -> Iterator[str]:
    """URL of a server of this machine."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(f"the model at {self.path}".encode())

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    thread.join()
    server.server_close()


async def test_a_program_has_tree_environment_and_status(open_runtime: Open) -> None:
    async with open_runtime() as runtime:
        view = runtime.with_env({"TASK": "one ", "SAID": "hidden"})
        done = await view.run(["sh", "-c", 'pwd; ls; echo "$TASK$SAID" >&2; exit 3'], {"SAID": "two"})
        assert (done.exit_code, done.stderr) == (3, "one two\n")
        assert done.stdout.split() == ["/testbed", "m.py", "test_m.py"]
        assert (await runtime.run(["sh", "-c", "kill -9 $$"], {})).exit_code == 137
        assert (await runtime.run(["no-such-program"], {})).exit_code != 0
        assert await runtime.alive()


async def test_a_program_ends_at_the_time_limit(open_runtime: Open) -> None:
    async with open_runtime(2.0) as runtime:
        done = await runtime.run(["sleep", "60"], {})
        assert done.exit_code != 0
        assert "out of time" in done.stderr


async def test_files_keep_their_bytes_and_bounds(open_runtime: Open) -> None:
    import verifiers.v1 as vf

    content = bytes(range(256)) * 40
    async with open_runtime() as runtime:
        for path in ("deep/er/file.bin", "/tmp/vf-scripts/with space.bin"):
            await runtime.write(path, content)
            assert await runtime.read(path) == content
            assert await runtime.read(path, len(content)) == content
            with pytest.raises(vf.SandboxError, match="byte limit"):
                await runtime.read(path, len(content) - 1)
        with pytest.raises(vf.SandboxError, match="No such file"):
            await runtime.read("missing.txt")
        with pytest.raises(vf.SandboxError):
            await runtime.write("m.py/below", b"")


async def test_the_sandbox_reaches_the_model_and_nothing_else(open_runtime: Open, model: str) -> None:
    async with open_runtime() as runtime:
        inside = runtime.host_url(f"{model}/x?y=1")
        assert (await runtime.run(["python", "-c", ASK, inside], {})).exit_code != 0  # before the agent starts
        await runtime.prepare_execution(None)
        assert (await runtime.run(["python", "-c", ASK, inside], {})).stdout == "the model at /v1/x?y=1\n"
        for outside in (model, "http://1.1.1.1/", "http://localhost:22/"):
            done = await runtime.run(["python", "-c", ASK, outside], {})
            assert (done.exit_code, done.stdout) == (1, "")


async def test_a_script_without_packages_runs(open_runtime: Open) -> None:
    script = '# /// script\n# requires-python = ">=3.10"\n# dependencies = []\n# ///\nimport sys\nprint(sys.argv[1:])\n'
    async with open_runtime() as runtime:
        done = await runtime.run_uv_script(script, ["a", "b c"])
        assert (done.exit_code, done.stdout, done.stderr) == (0, "['a', 'b c']\n", "")


async def test_what_the_programs_left_is_graded(open_runtime: Open) -> None:
    async with open_runtime() as runtime:
        await runtime.write("m.py", b"def f(a, b):\n    return a <= b\n")
        await runtime.run(["sh", "-c", "echo note > note.txt"], {})
        verdict, patch = await runtime.box.grade()
        assert verdict.kind is VerdictKind.PASSED
        assert "+    return a <= b" in patch
        assert "+note" in patch


async def test_an_ended_runtime_runs_nothing(open_runtime: Open, model: str) -> None:
    import verifiers.v1 as vf

    async with open_runtime() as runtime:
        runtime.host_url(model)
        await runtime.prepare_execution(None)
        running = asyncio.ensure_future(runtime.run(["sleep", "60"], {}))
        await asyncio.sleep(0.5)
        await runtime.stop()
        with pytest.raises(vf.SandboxError):
            await running
        assert not await runtime.alive()
        await runtime.stop()
