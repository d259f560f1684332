"""The site of conformance checks, and the helpers that run programs and raise on a failed check."""

import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from repairgym.sandbox.base import ExecResult, Sandbox, SandboxBackend, SandboxLimits, SandboxSpec

TIMEOUT_S = 60.0

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
    limits: SandboxLimits = field(default_factory=SandboxLimits)

    @asynccontextmanager
    async def sandbox(
        self, files: dict[str, str | None] | None = None, limits: SandboxLimits | None = None
    ) -> AsyncIterator[Sandbox]:
        """Make a sandbox and close it afterwards."""
        spec = SandboxSpec(
            environment=self.environment, tree=self.tree, files=files or {}, limits=limits or self.limits
        )
        sandbox = await self.backend.create(spec)
        try:
            yield sandbox
        finally:
            await sandbox.close()


@dataclass(frozen=True)
class Check:
    """One requirement on a back end."""

    name: str
    run: Callable[[Site], Awaitable[None]]
    is_isolating_only: bool = False
    """True when it applies only to back ends that isolate."""
    needs_snapshots: bool = False
    """True when it applies only to back ends with snapshots and forks."""


def checks(
    *functions: Callable[[Site], Awaitable[None]], is_isolating_only: bool = False, needs_snapshots: bool = False
) -> tuple[Check, ...]:
    """Make checks named after their functions."""
    return tuple(Check(function.__name__, function, is_isolating_only, needs_snapshots) for function in functions)


def require(is_true: bool, expected: str, got: object) -> None:
    """Raise unless ``is_true``.

    Raises:
        AssertionError: with the expected and the actual value.
    """
    if not is_true:
        raise AssertionError(f"expected {expected}, got {got!r}")


async def shell(sandbox: Sandbox, script: str, timeout_s: float = TIMEOUT_S) -> ExecResult:
    """Run a shell script."""
    return await sandbox.exec(("sh", "-c", script), timeout_s=timeout_s)


async def python(sandbox: Sandbox, program: str, *arguments: str, timeout_s: float = TIMEOUT_S) -> ExecResult:
    """Run a Python program."""
    return await sandbox.exec(("python", "-c", program, *arguments), timeout_s=timeout_s)


async def require_raises(kind: type[Exception], call: Awaitable[object]) -> None:
    """Raise unless ``call`` raises ``kind``.

    Raises:
        AssertionError: it returned.
    """
    try:
        await call
    except kind:
        return
    raise AssertionError(f"expected {kind.__name__}, got a result")
