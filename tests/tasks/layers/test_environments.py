from __future__ import annotations

import ast
import re
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

import repairgym
from repairgym.config.sandbox import LayersConfig, SandboxConfig, SandboxLimits
from repairgym.errors import IndexUnavailableError, TaskError
from repairgym.sandbox.base import SandboxSpec
from repairgym.sandbox.guest.spawner import GUEST_ENVIRONMENT
from repairgym.tasks.layers.environments import (
    base_python,
    build_environment,
    describe_environment,
    install_arguments,
    lock_name,
    read_lock,
    resolve_lock,
)
from repairgym.tasks.layers.package_index import Sdist
from repairgym.tasks.layers.store import LayerStore


def test_equal_requirements_share_one_lock() -> None:
    assert lock_name(("b>=1", "a")) == lock_name(("a", "b>=1")) == "pytest+a+b-1.txt"
    assert lock_name(()) == "pytest.txt"


def test_digest_follows_the_lock() -> None:
    lock = read_lock(())
    assert describe_environment(lock) == describe_environment(lock)
    assert describe_environment(lock).digest != describe_environment(lock + "\n").digest


def test_missing_lock_says_how_to_make_it() -> None:
    with pytest.raises(TaskError, match="repairgym tasks lock"):
        read_lock(("no-such-requirement",))


def test_base_python_is_outside_any_virtual_environment() -> None:
    code = "import sys; print(sys.prefix == sys.base_prefix)"
    done = subprocess.run([str(base_python()), "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"


@pytest.mark.network
def test_environment_holds_what_its_lock_names(tmp_path: Path) -> None:
    lock = resolve_lock(())
    assert "--hash=sha256:" in lock
    assert "://" not in lock
    environment, folder = build_environment(LayerStore(tmp_path), lock)
    assert folder.name == environment.digest
    code = "import pytest, sys; print(pytest.__version__, sys.prefix)"
    done = subprocess.run([str(folder / "bin" / "python"), "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["8.3.5", str(folder)]
    assert list(folder.rglob("pytest/__pycache__/*.pyc"))


NETWORK_MODULES = {
    "aiohttp",
    "ftplib",
    "http",
    "httpx",
    "httpx2",
    "requests",
    "smtplib",
    "unearth",
    "urllib",
    "urllib3",
}
LOCK = "iniconfig==2.3.0 --hash=sha256:f631c04d2c48c52b84d0d0549c99ff3859c98df65b3101406327ecc7d53fbf12\n"


@pytest.fixture
def asked_paths(monkeypatch):
    """Requests that reach the configured package index, which has nothing."""
    paths = []

    class Index(BaseHTTPRequestHandler):
        def do_GET(self):
            paths.append(self.path)
            self.send_error(404)

        def log_message(self, *arguments):
            pass

    with HTTPServer(("127.0.0.1", 0), Index) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv("UV_DEFAULT_INDEX", f"http://127.0.0.1:{server.server_port}/simple")
        monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
        yield paths
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("is_index_allowed", [True, False])
def test_only_an_allowed_index_is_asked(tmp_path, asked_paths, monkeypatch, is_index_allowed):
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    store = LayerStore(tmp_path / "store", config=LayersConfig(is_index_allowed=is_index_allowed))
    with pytest.raises(IndexUnavailableError):
        store.sdist(Sdist(name="iniconfig", version="2.3.0", sha256="0"))
    with pytest.raises(IndexUnavailableError):
        build_environment(store, LOCK)
    assert bool(asked_paths) == is_index_allowed
    assert not store.has("environments", "anything")


def test_no_code_of_a_package_runs_while_a_network_is_there():
    for is_index_allowed in (True, False):
        argv = install_arguments(Path("python"), Path("lock"), is_index_allowed)
        assert argv[argv.index("--only-binary") + 1] == ":all:"
        assert "--require-hashes" in argv
        assert ("--offline" in argv) != is_index_allowed


def test_an_index_registries_and_model_servers_are_all_that_is_spoken_to():
    """Besides uv, which is a program of its own."""
    root = Path(repairgym.__file__).parent
    found = set()
    may_import = re.compile(rf"^\s*(import|from)\b.*\b({'|'.join(NETWORK_MODULES)})\b", re.MULTILINE)
    texts = ((path, path.read_text(encoding="utf-8")) for path in root.rglob("*.py"))
    for path, text in texts:
        for node in ast.walk(ast.parse(text)) if may_import.search(text) else ():
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names = [name for name in names if name != "urllib.parse"]  # text only
            if any(name.partition(".")[0] in NETWORK_MODULES for name in names):
                found.add(str(path.relative_to(root)))
    spoken_to = {"tasks/layers/package_index.py", "tasks/layers/images/registry.py", "inference/transport.py"}
    assert found == spoken_to


def test_no_setting_gives_a_sandbox_a_network():
    fields = {*SandboxSpec.model_fields, *SandboxConfig.model_fields, *SandboxLimits.model_fields}
    assert not [name for name in fields if "net" in name or "index" in name]
    assert GUEST_ENVIRONMENT["PIP_NO_INDEX"] == GUEST_ENVIRONMENT["UV_OFFLINE"] == "1"


def test_the_name_of_a_lock_is_one_that_files_can_have() -> None:
    many = tuple(f"some-requirement-{number}" for number in range(40))
    assert len(lock_name(many)) < 255
    assert lock_name(many) != lock_name(many[:-1])
    assert lock_name(("b<2", "a")) == "pytest+a+b-2.txt"
