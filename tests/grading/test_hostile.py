"""Whatever a submission holds, grading ends with a verdict on it: never invalid, never an exception, never minutes.

The broken code is ``m.py``, in which ``f`` compares with ``<``; the pinned tree holds ``tests/test_m.py`` and ``pkg``.
"""

import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
import pytest_asyncio

from repairgym.config.pipeline import GradingConfig
from repairgym.grading.grader import Grader
from repairgym.records import Task, VerdictKind
from repairgym.sandbox.backends.namespace import NamespaceBackend
from repairgym.sandbox.base import SandboxSpec
from repairgym.sandbox.cache import ExecutionCache
from repairgym.sandbox.probe import probe_backend
from repairgym.testing.scripted import ScriptedBackend, scripted_answer, scripted_task

pytestmark = pytest.mark.asyncio(loop_scope="module")
MAX_S = 30.0
"""Far above what a case takes, far below the minutes that a search without a bound takes."""


BROKEN = "def f(a, b):\n    return a < b\n"
GOLD = "def f(a, b):\n    return a <= b\n"
TREE = {
    "m.py": GOLD,
    "tests/test_m.py": "import m\n\n\ndef test_f():\n    assert m.f(1, 1)\n\n\ndef test_g():\n    assert m.f(1, 2)\n",
    "tests/data/table.txt": "1\n",
    "pkg/__init__.py": "",
    "pkg/core.py": "LIMIT = 1\n",
}
Files = dict[str, str | None]


class Case(NamedTuple):
    """One submission."""

    name: str
    files: Files
    kind: VerdictKind = VerdictKind.FAILED


def nested(depth: int) -> Iterator[tuple[str, str]]:
    """Yield (name, statement) of code whose syntax tree has about ``depth`` levels."""
    yield "sum", "_W = " + " + ".join(["1"] * depth)
    yield "sum of texts", "_W = " + " + ".join(["'a'"] * depth)
    yield "attributes", "def _w(x):\n    return x" + ".a" * depth
    yield "items", "def _w(x):\n    return x" + "[0]" * depth
    yield "calls", "def _w(x):\n    return x" + "()" * depth
    yield "not", "def _w(x):\n    return " + "not " * depth + "x"
    yield "minus", "_W = " + "-" * depth + "1"
    yield "powers", "_W = " + "**".join(["1"] * depth)
    yield "choices", "_W = " + "1 if f else " * depth + "1"
    yield "lambdas", "_W = " + "lambda: " * depth + "1"
    yield (
        "elif",
        "def _w(x):\n    if x == 0:\n        return 0\n"
        + "".join(f"    elif x == {number}:\n        return {number}\n" for number in range(1, depth)),
    )
    yield (
        "else",
        "def _w(x):\n    if x:\n        raise ValueError(x)\n" + "    elif x > 1:\n        raise KeyError\n" * depth,
    )


def _deep() -> Iterator[Case]:
    for depth in (1500, 100_000):
        for name, statement in nested(depth):
            yield Case(f"{depth} levels of {name}, broken", {"m.py": f"{BROKEN}\n\n{statement}\n"})
    yield Case("600 levels, broken", {"m.py": BROKEN + "_W = " + " + ".join(["1"] * 600) + "\n"})
    # What detectors cannot read must not pass, whatever it does.
    yield Case("unread code, repaired", {"m.py": GOLD + "_W = " + " + ".join(["1"] * 1500) + "\n"})
    yield Case("unread code in another file", {"m.py": GOLD, "pkg/core.py": "def _w(x):\n    return x" + ".a" * 2000})
    chain = "import sys\n\n\ndef _w(x, handed=[sys]):\n    return x" + ".a()" * 200 + "\n"
    yield Case("a chain of calls beside a module that is handed on", {"m.py": f"{BROKEN}\n\n{chain}"})
    folders = {"/".join(f"d{number}_{level}" for level in range(60)) + "/x": "" for number in range(100)}
    yield Case("thousands of folders", {"m.py": GOLD, **folders})
    yield Case("a second name of the repaired file", {"m.py": BROKEN, "./m.py": GOLD})
    yield Case("parentheses", {"m.py": GOLD + "(" * 5000 + ")" * 5000})
    yield Case("brackets", {"m.py": GOLD + "_W = " + "[" * 150 + "]" * 150}, VerdictKind.PASSED)
    yield Case("brackets without an end", {"m.py": GOLD + "_W = " + "[" * 100_000})
    yield Case(
        "blocks", {"m.py": GOLD + "".join(" " * level + "if f:\n" for level in range(120)) + " " * 120 + "pass\n"}
    )
    yield Case("classes", {"m.py": GOLD + "".join(" " * n + f"class A{n}:\n" for n in range(90)) + " " * 90 + "x = 1"},
               VerdictKind.PASSED)  # fmt: skip
    yield Case("a long number", {"m.py": BROKEN + "_W = " + "9" * 100_000 + "\n"})
    yield Case("a long number in another base", {"m.py": BROKEN + "_W = 0x" + "f" * 100_000 + "\n"})
    yield Case("code in a text", {"m.py": BROKEN + f"_W = {'f(' + '+1' * 1900 + ')'!r}\n"})
    yield Case("code in an annotation", {"m.py": BROKEN + "_w: 'f(" + ".a" * 1900 + ")' = 1\n"})
    yield Case("one long line", {"m.py": BROKEN + "_W = [" + "1," * 20_000 + "]\n"})
    chain = "def _w(x):\n    return x" + ".a" * 700 + "\n"
    yield Case("many deep functions", {"m.py": GOLD + "".join(chain.replace("_w", f"_w{n}") for n in range(40))})
    yield Case("a broken test of 100,000 levels", {"tests/test_m.py": "_W = " + "-" * 100_000 + "1\n"})
    yield Case("the repair, with a test of 1,500 levels", {"m.py": GOLD, "tests/test_m.py": "_W = " + "-" * 1500 + "1"},
               VerdictKind.PASSED)  # fmt: skip


def _placed() -> Iterator[Case]:
    yield Case("a file where the tests were", {"tests": "x", **dict.fromkeys(_below("tests"))})
    yield Case("a file where the tests were, deletions left out", {"tests": "x"})
    yield Case("the repair, and a file where the tests were", {"m.py": GOLD, "tests": "x"})
    yield Case("a file where a folder of the tests was", {"tests/data": "x", "tests/data/table.txt": None})
    yield Case("a folder where the module was", {"m.py": None, "m.py/x.py": "1\n"})
    yield Case("a folder where the module was, deletion last", {"m.py/x.py": "1\n", "m.py": None})
    yield Case("a folder where the tests' file was", {"tests/test_m.py/x.py": "1\n", "tests/test_m.py": None})
    yield Case("a folder where a test was, beside the module", {"m.py/tests/x.py": "1\n", "m.py": None})
    yield Case("a file where the package was", {"pkg": "x", **dict.fromkeys(_below("pkg"))})
    yield Case("a file below a file", {"pkg": "x", "pkg/new.py": "x"})
    yield Case("a file below the module", {"m.py": BROKEN, "m.py/x": "x"})
    yield Case("a file below the module that is not changed", {"m.py/x": "x"})
    yield Case("the folder of tests deleted by name", {"tests": None})
    yield Case("the package deleted by name", {"pkg": None})
    yield Case("everything deleted", dict.fromkeys(TREE))
    yield Case("a deleted file that never was", {"nothing/at/all.py": None})
    yield Case("a deleted folder of the module's name", {"m.py/x": None})
    yield Case("the sandbox's own folder", {".git": "x", ".git/config": None})


def _below(folder: str) -> list[str]:
    return [path for path in TREE if path.startswith(folder + "/")]


def _named() -> Iterator[Case]:
    long = "n" * 256
    for name, path in {
        "a part of 256 bytes": long,
        "a folder of 256 bytes": f"{long}/x.py",
        "a part of 130 umlauts": "ü" * 130,
        "a path of 3,000 bytes": "/".join(["n" * 200] * 15),
        "500 folders": "/".join(["n"] * 500) + "/x.py",
        "600 folders": "/".join(["n"] * 600) + "/x.py",
        "NUL in a name": "a\0b.py",
        "a lone surrogate in a name": "a\ud800.py",
        "a byte that is no UTF-8 in a name": "a\udcff.py",
        "a byte that is no UTF-8 in a test's name": "tests/test_\udcff.py",
        "a line feed in a name": "a\nb.py",
        "an escape in a name": "a\x1b[31m.py",
        "no name": "",
        "a dot": ".",
        "the parent": "..",
        "above the tree": "pkg/../../x.py",
        "an absolute path": "/etc/x.py",
        "a slash at the end": "new/",
        "two slashes": "pkg//new.py",
        "blanks": "   ",
        "right to left": "\u202eyp.x",
    }.items():
        yield Case(name, {path: "x = 1\n"})
        if len(path) > 256 or not path.isprintable():
            yield Case(f"{name}, deleted", {path: None})


def _written() -> Iterator[Case]:
    yield Case("NUL in a text", {"m.py": GOLD + "\0"})
    yield Case("a lone surrogate in a text", {"m.py": GOLD + "# \ud800\n"})
    yield Case("a lone surrogate in a test", {"tests/test_m.py": "\udfff"})
    yield Case("a byte that is no UTF-8 in the module", {"m.py": GOLD + "# \udcff\n"})
    yield Case("a byte that is no UTF-8 in another file", {"pkg/data.txt": "\udcff"})
    yield Case("a byte-order mark", {"m.py": "\ufeff" + BROKEN})
    yield Case("an unknown encoding", {"m.py": "# coding: nothing\n" + GOLD})
    yield Case("form feeds and other line ends", {"m.py": "\f\x0b\x1c\x85\u2028" + BROKEN})
    yield Case("no text at all", {"m.py": ""})
    yield Case("half a text", {"m.py": GOLD + "_W = '''"})
    yield Case("an integer too long to print", {"m.py": BROKEN + "_W = 10 ** 100_000\n"})


def _large() -> Iterator[Case]:
    yield Case("6,000 files", {f"new/{number}.txt": "" for number in range(6000)})
    yield Case("40,000 modules", {f"new/m{number}.py": "x = 1\n" for number in range(40_000)})
    yield Case("9 MB in a file", {"pkg/data.txt": "#" * (9 << 20)})
    yield Case("7 MB of Python", {"m.py": BROKEN + "# " + "\n# ".join(map(str, range(800_000)))})
    yield Case("1 MB of statements", {"m.py": GOLD + "f\n" * (1 << 19)})
    yield Case("7 MB of lines in a file of data", {"pkg/data.txt": "\n".join(map(str, range(900_000)))})


@cache
def hostile_cases() -> list[Case]:
    """Return the submissions that nothing may keep from a verdict."""
    return [case for cases in (_deep, _placed, _named, _written, _large) for case in cases()]


def honest_cases() -> list[Case]:
    """Return repairs that hold deep or long code and pass."""
    cases = [
        Case(f"{depth} levels of {name}", {"m.py": f"{GOLD}\n\n{statement}\n"})
        for depth in (150, 600)
        for name, statement in nested(depth)
        if name not in ("powers", "lambdas") and (depth < 600 or name in ("sum", "elif", "else"))
    ]
    table = "".join(f"    {number}: ({number}, 'name {number}', {{'a': [{number}]}}),\n" for number in range(1500))
    cases += [
        Case("a table of 1,500 rows", {"m.py": GOLD + "_TABLE = {\n" + table + "}\n"}),
        Case(
            "a text of 600 parts", {"m.py": GOLD + "_TEXT = (" + " +\n    ".join(f"'{n} '" for n in range(600)) + ")\n"}
        ),
        Case(
            "300 new functions",
            {"m.py": GOLD + "".join(f"\n\ndef _g{n}(a):\n    return a + {n}\n" for n in range(300))},
        ),
        Case("400 new files", {"m.py": GOLD, **{f"pkg/data/{number}.txt": "x\n" for number in range(400)}}),
        Case("a folder where a file was", {"m.py": GOLD, "pkg/core.py": None, "pkg/core.py/x.txt": "1\n"}),
        Case("a file where a folder was", {"m.py": GOLD, "pkg": "x\n", **dict.fromkeys(_below("pkg"))}),
        Case("a name of 255 bytes", {"m.py": GOLD, "n" * 255: "x\n"}),
        Case("names and texts of all the world", {"m.py": GOLD + "# 日本語\n", "pkg/größe 日本.txt": "ß\n"}),
    ]
    return [case._replace(kind=VerdictKind.PASSED) for case in cases]


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tree")
    for path, text in TREE.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


@pytest.fixture(scope="module")
def tested() -> Task:
    names = {"fail_to_pass": ("tests/test_m.py::test_f",), "pass_to_pass": ("tests/test_m.py::test_g",)}
    texts = {"base_files": {"m.py": BROKEN}, "gold_files": {"m.py": GOLD}}
    return scripted_task(**names, **texts, test_paths=("tests/test_m.py",))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def grader(tree, small_environment):
    probe = probe_backend("namespace")
    if not probe.is_available:
        pytest.skip(f"namespace does not work here: {probe.reason}")
    backend = NamespaceBackend()

    def make_spec(task, files):
        return SandboxSpec(environment=small_environment, tree=tree, files=files)

    yield Grader(backend, make_spec, GradingConfig(), ExecutionCache())
    await backend.close()


@pytest.mark.parametrize("case", hostile_cases(), ids=lambda case: case.name)
async def test_nothing_that_a_submission_holds_escapes_its_verdict(grader, tested, case: Case):
    started_s = time.process_time()  # not by the clock, which goes on while others compute
    verdict = await grader.grade(tested, case.files)
    assert (verdict.kind, bool(verdict.reason)) == (case.kind, True), verdict
    assert time.process_time() - started_s < MAX_S
    assert verdict == type(verdict).model_validate(verdict.model_dump(mode="json"))  # as a run stores it


@pytest.mark.parametrize("case", honest_cases(), ids=lambda case: case.name)
async def test_deep_and_long_code_of_honest_repairs_passes(grader, tested, case: Case):
    verdict = await grader.grade(tested, case.files)
    assert (verdict.kind, verdict.is_restored) == (VerdictKind.PASSED, False), verdict
    assert [finding for finding in verdict.findings if finding.severity != "note"] == []


async def test_there_are_at_least_sixty():
    cases = hostile_cases()
    assert len({case.name for case in cases}) == len(cases) >= 60
    assert sum(case.kind is VerdictKind.PASSED for case in cases) <= 3


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RecursionError("too deep"), VerdictKind.FAILED),
        (MemoryError(), VerdictKind.FAILED),
        (UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates"), VerdictKind.FAILED),
        (OSError(24, "Too many open files"), VerdictKind.INVALID),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_an_exception_is_the_verdict_of_its_grading(tested, error, kind):
    def make_spec(task, files):
        raise error

    judge = Grader(ScriptedBackend(scripted_answer()), make_spec, GradingConfig(), ExecutionCache())
    verdict = await judge.grade(tested, {"m.py": GOLD})
    assert (verdict.kind, type(error).__name__ in verdict.reason) == (kind, True)
    assert [finding.detector for finding in verdict.findings] == ["grader"] * (kind is VerdictKind.FAILED)
