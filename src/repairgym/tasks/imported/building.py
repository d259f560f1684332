"""Builds of projects in sandboxes: wheels of source distributions, and editable installations of repositories.

Reads a tree layer. Makes a wheel and the files that the build changed in the tree (version files, extension modules,
metadata). Guarantees: code of the project runs only in a sandbox, on the task's Python, without a network, with the
build requirements that the project names, none uploaded after the bound; a build that fails raises `BuildError` with
its last line.
"""

import json
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from repairgym.config.sandbox import SandboxLimits
from repairgym.errors import TaskError
from repairgym.sandbox.base import Sandbox, SandboxBackend, SandboxSpec
from repairgym.tasks.imported.environments import EnvironmentBuilder, Wanted
from repairgym.tasks.imported.interpreters import Interpreter
from repairgym.tasks.layers.metadata import read_settings
from repairgym.tasks.layers.requirement_pins import build_requirements
from repairgym.tasks.layers.store import LayerStore

BuildKind = Literal["editable", "wheel"]
_OUTPUT = ".repairgym-build"
"""Folder of the tree with the products of the hooks."""
_LEGACY = "setuptools.build_meta:__legacy__"
_LIMITS = SandboxLimits(memory_bytes=8 << 30, num_processes=512, disk_bytes=2 << 30, file_bytes=1 << 30)
"""Compilers need more than tests do."""


class BuildError(TaskError):
    """A project that cannot be built."""


@dataclass(frozen=True)
class BuiltProject:
    """The products of one build."""

    wheel: str
    content: bytes
    changed: dict[str, bytes | None]
    """Relative path -> content of each file of the tree that the build made, changed or deleted (None)."""
    sources: str | None = None
    """Folder of the sources of an editable build whose wheel does not name it."""


class ProjectBuilder:
    """Builds projects for one interpreter; also of the wheels that its own environments lack."""

    def __init__(
        self,
        store: LayerStore,
        interpreter: Interpreter,
        backend: SandboxBackend,
        uploaded_before: str = "",
        timeout_s: float = 600.0,
    ) -> None:
        """Build in sandboxes of ``backend``; build requirements are no newer than ``uploaded_before``."""
        self.environments = EnvironmentBuilder(store, interpreter, self._build_sdist)
        self._backend = backend
        self._uploaded_before = uploaded_before
        self._timeout_s = timeout_s

    async def _build_sdist(self, tree: Path) -> tuple[str, bytes]:
        built = await self.build(tree, "wheel")
        return built.wheel, built.content

    async def build(
        self, tree: Path, kind: BuildKind, version: str = "", pre_install: tuple[str, ...] = ()
    ) -> BuiltProject:
        """Build the project in ``tree``, after the shell commands ``pre_install`` in it.

        ``version`` is for back ends that would ask git.

        Raises:
            BuildError: a command of the build failed.
            SandboxError: a sandbox could not do its work.
        """
        settings = read_settings(tree).get("build-system", {})
        order = {
            "kind": kind,
            "backend": settings.get("build-backend", _LEGACY),
            "backend_path": settings.get("backend-path", []),
            "output": _OUTPUT,
        }
        needed = build_requirements(tree)
        first = await self._environment(needed)
        asked = await self._run(first, tree, {**order, "stage": "requires"}, version, pre_install)
        more = tuple(str(line) for line in json.loads(asked[f"{_OUTPUT}/result.json"] or b"{}")["requires"])
        environment = await self._environment((*needed, *more)) if set(more) - set(needed) else first
        changed = await self._run(environment, tree, {**order, "stage": "build"}, version, pre_install)
        result: dict[str, Any] = json.loads(changed[f"{_OUTPUT}/result.json"] or b"{}")
        wheel = str(result["wheel"])
        content = changed[f"{_OUTPUT}/{wheel}"] or b""
        own = {path: data for path, data in changed.items() if not _is_by_product(path)}
        return BuiltProject(wheel, content, own, result.get("sources"))

    async def _environment(self, requirements: tuple[str, ...]) -> Path:
        wanted = Wanted(tuple(dict.fromkeys(requirements)), uploaded_before=self._uploaded_before)
        return (await self.environments.build(wanted)).folder

    async def _run(
        self, environment: Path, tree: Path, order: dict[str, Any], version: str, pre_install: tuple[str, ...]
    ) -> dict[str, bytes | None]:
        """Run one stage of the hooks in a sandbox of its own; return the changed files."""
        sandbox = await self._backend.create(SandboxSpec(environment=environment, tree=tree, limits=_LIMITS))
        try:
            for command in pre_install:
                # What installs packages of the system needs a network, and has no part in this build.
                await sandbox.exec(("bash", "-c", command), timeout_s=self._timeout_s)
            await self._call_hooks(sandbox, order, version)
            return await sandbox.changed_files()
        finally:
            await sandbox.close()

    async def _call_hooks(self, sandbox: Sandbox, order: dict[str, Any], version: str) -> None:
        environ = {"SETUPTOOLS_SCM_PRETEND_VERSION": version, "PBR_VERSION": version} if version else {}
        done = await sandbox.exec(
            ("python", "-c", _hooks_text()), timeout_s=self._timeout_s, env=environ, stdin=json.dumps(order).encode()
        )
        if done.is_timed_out:
            raise BuildError(f"the {order['kind']} build took longer than {self._timeout_s:g} s")
        if done.exit_status != 0:
            lines = [line for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
            last = lines[-1].strip()[:300] if lines else f"exit status {done.exit_status}"
            raise BuildError(f"the {order['kind']} build failed in stage {order['stage']}: {last}")


def _is_by_product(path: str) -> bool:
    return path.startswith((f"{_OUTPUT}/", "build/")) or path.endswith(".pyc")


@lru_cache(maxsize=1)
def _hooks_text() -> str:
    return (resources.files("repairgym") / "tasks/imported/guest/hooks.py").read_text(encoding="utf-8")
