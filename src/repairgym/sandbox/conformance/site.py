"""The site of conformance checks, and the makers of checks."""

import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

from repairgym.sandbox.base import ImageRoot, Sandbox, SandboxBackend, SandboxLimits, SandboxSpec
from repairgym.sandbox.conformance.runs import require_silence

Files = dict[str, str | None]
"""Path -> text that is written over the tree (None: deleted)."""

_TREE = {
    "shop/__init__.py": "",
    "shop/prices.py": "def total(values):\n    return sum(values)\n\n\ndef unused():\n    return 0\n",
    "shop/old/a.txt": "a\n",
    "shop/old/b.txt": "b\n",
    "run.sh": "#!/bin/sh\necho ran\n",
    "tests/test_prices.py": (
        "import unittest\n\nimport pytest\n\nfrom shop.prices import total\n\n\n"
        "def test_total():\n    assert total([1, 2]) == 3\n\n\n"
        "def test_wrong():\n    assert total([1, 2]) == 4\n\n\n"
        "def test_raises():\n    total([None])\n\n\n"
        "@pytest.fixture\ndef broken():\n    raise OSError('no fixture')\n\n\n"
        "def test_error(broken):\n    pass\n\n\n"
        "@pytest.mark.skip(reason='not today')\ndef test_skipped():\n    pass\n\n\n"
        "@pytest.mark.xfail\ndef test_expected():\n    assert False\n\n\n"
        "@pytest.mark.parametrize('word', ['two words', 'br[ack]et', 'a::b', 'caf\\u00e9'])\n"
        "def test_words(word):\n    assert word\n\n\n"
        "def test_fixtures(tmp_path, monkeypatch, capsys, caplog, recwarn):\n    print(tmp_path)\n"
        "    assert capsys.readouterr().out\n\n\n"
        "class TestCase(unittest.TestCase):\n    def test_method(self):\n        self.assertEqual(total([1]), 1)\n"
    ),
    "tests/test_import.py": "import no_such_module\n\n\ndef test_never():\n    pass\n",
    "tests/test_slow.py": "def test_first():\n    pass\n\n\ndef test_endless():\n    while True:\n        pass\n\n\n"
    "def test_last():\n    pass\n",
    "tests/test_crash.py": "import os\n\n\ndef test_before():\n    pass\n\n\ndef test_crash():\n    os.abort()\n",
    "setup.cfg": "[tool:pytest]\naddopts = --no-such-option\n",
}


def make_environment(folder: Path) -> Path:
    """Make ``folder`` an environment with this interpreter and no packages, which starts faster than a full one."""
    interpreter = Path(sys.executable).resolve()
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to(interpreter)
    (folder / "pyvenv.cfg").write_text(f"home = {interpreter.parent}\ninclude-system-site-packages = false\n")
    return folder


def make_tree(folder: Path) -> Path:
    """Write the tree that the checks use into ``folder``."""
    for path, text in _TREE.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    (folder / "run.sh").chmod(0o755)
    (folder / "link.txt").symlink_to("shop/old/a.txt")
    return folder


@dataclass(frozen=True)
class Site:
    """A back end and the inputs of its sandboxes."""

    backend: SandboxBackend
    environment: Path
    tree: Path
    root: ImageRoot | None = None

    def spec(self, files: Files | None = None, **limits: int) -> SandboxSpec:
        """Return the inputs of a sandbox with ``files`` over the tree and other ``limits``."""
        bounds = SandboxLimits(**limits)
        return SandboxSpec(
            environment=self.environment, tree=self.tree, files=files or {}, limits=bounds, root=self.root
        )

    @asynccontextmanager
    async def sandbox(self, files: Files | None = None, **limits: int) -> AsyncIterator[Sandbox]:
        """Make a sandbox of `spec` and close it afterwards."""
        sandbox = await self.backend.create(self.spec(files, **limits))
        try:
            yield sandbox
        finally:
            await sandbox.close()


@dataclass(frozen=True)
class Check:
    """One requirement on a back end."""

    run: Callable[[Site], Awaitable[None]]
    needs_snapshots: bool = False
    """True when it applies only to back ends with snapshots and forks."""
    is_isolating_only: bool = False
    """True when it applies only to back ends that isolate."""
    name: str = ""
    """Its name in its module."""


def checks_of(module: ModuleType, *, is_isolating_only: bool = False) -> tuple[Check, ...]:
    """Return the checks of ``module`` in their order."""
    checks = {name: value for name, value in vars(module).items() if isinstance(value, Check)}
    return tuple(replace(check, name=name, is_isolating_only=is_isolating_only) for name, check in checks.items())


def on_site(*, needs_snapshots: bool = False) -> Callable[[Callable[[Site], Awaitable[None]]], Check]:
    """Make a check of a function that makes its own sandboxes."""
    return lambda function: Check(function, needs_snapshots)


def on_sandbox(
    files: Files | None = None, *, needs_snapshots: bool = False, **limits: int
) -> Callable[[Callable[[Sandbox], Awaitable[None]]], Check]:
    """Make a check of a function of one sandbox, which has ``files`` over the tree and other ``limits``."""

    def make(function: Callable[[Sandbox], Awaitable[None]]) -> Check:
        async def run(site: Site) -> None:
            async with site.sandbox(files, **limits) as sandbox:
                await function(sandbox)

        return Check(run, needs_snapshots)

    return make


def prints_nothing(program: str) -> Check:
    """Make a check of a Python program that prints what it could do although it must not."""

    async def run(sandbox: Sandbox) -> None:
        await require_silence(sandbox, program)

    return on_sandbox()(run)
