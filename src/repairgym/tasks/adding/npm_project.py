"""A project of JavaScript or TypeScript that is to be added: what its files tell.

Reads the folder of an archive or a commit. Makes `NodeFolder` records, and the packages that an environment of it
needs. Guarantees: no code of the project runs.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from repairgym.errors import TaskError
from repairgym.tasks.javascript.syntax import is_javascript
from repairgym.tasks.layers.catalogue import NodeRunner

FRAMEWORKS: Mapping[NodeRunner, tuple[str, ...]] = {
    "vitest": ("2.1.9",),
    "jest": ("29.7.0",),
    "mocha": ("10.8.2", "8.4.0", "11.7.4"),
    "tape": ("5.9.0", "4.17.0", "3.6.1"),
    "node_test": ("",),
}
"""Framework -> versions of its package; the next one where one needs the project itself."""
_TYPESCRIPT_LOADER = {"tsx": "4.19.2"}
_TYPESCRIPT = (".ts", ".tsx", ".mts", ".cts")
_TEST_FOLDERS = frozenset({"test", "tests", "__tests__", "spec"})
_TEST_NAME = re.compile(r"(^|[._-])(test|spec)s?\.\w+$")
_NO_SOURCES = frozenset({
    "dist", "build", "example", "examples", "bench", "benchmark", "benchmarks", "docs", "node_modules", "scripts",
    "types",
})  # fmt: skip
_CONFIGURATION = re.compile(r"^(\..*|.*\.config\.\w+|Gruntfile|Gulpfile|gulpfile|karma\.\w+|rollup\.\w+)")
_TOP_SCRIPT = re.compile(r"^(build|example|bench|benchmark)s?([.-].*)?\.\w+$")
"""Files next to ``package.json`` that are no code of the package."""
_OTHER_FRAMEWORKS = (
    "ava",
    "jasmine",
    "uvu",
    "tap",
    "qunit",
    "lab",
    "@japa/runner",
    "@playwright/test",
    "cypress",
    "bun",
)
"""Frameworks that no runner here runs."""
_IMPORT = re.compile(r"""(?:\brequire\(\s*|\bfrom\s+|\bimport\s*\(?\s*)['"]([^'"./][^'"]*)['"]""")
_TEST_CALL = re.compile(r"(?:^|[^.\w])(?:it|test|describe|suite|context)(?:\.\w+)*\s*[(`]", re.MULTILINE)
_USES: Mapping[NodeRunner, re.Pattern[str]] = {
    "tape": re.compile(r"""['"]tape['"]"""),
    "node_test": re.compile(r"""['"]node:test['"]"""),
}
_NEEDED_BY_SETTINGS = re.compile(
    r"^(typescript|ts-jest|tslib|@swc/(jest|core)|babel-jest|@babel/.*|esbuild(-jest)?|jest-environment-.*|jsdom|happy-dom|@types/.*)$"
)
"""Packages that compilers and test frameworks find without a name in a file of the project."""
_SETTINGS = re.compile(r"^(tsconfig.*\.json|(jest|babel|swc)\.config\.\w+|\.(babel|swc)rc(\.\w+)?)$")
"""Files in which the packages are named that a compiler or a test framework loads."""
_OWN_SETTINGS = ("jest", "babel")
"""Keys of ``package.json`` with what could stand in such a file."""
_REQUIRED = re.compile(
    r"""(?:--require|\bmocha\b[^&|;]*?\s-r)[ =]+["']?([^\s"']+)|["']?require["']?:\s*\[?\s*-?\s*["']?([\w@./-]+)"""
)
"""Modules that mocha loads before the tests, in a command or in its settings."""
_QUOTED = re.compile(r"""(['"])(@?[\w][^'"\s]*)\1""")


class NodeFolder(NamedTuple):
    """A project in a folder, with what its files tell."""

    name: str
    """As ``package.json`` has it, with its scope."""
    tree: Path
    settings: Mapping[str, Any]
    """Content of ``package.json``."""
    runner: NodeRunner
    tests: tuple[str, ...]
    sources: tuple[str, ...]
    """Glob patterns."""

    @property
    def declared(self) -> dict[str, str]:
        """Every package that it asks for, with its range."""
        kinds = ("devDependencies", "optionalDependencies")
        return {name: wanted for kind in kinds for name, wanted in self._of(kind).items()} | self.required

    @property
    def required(self) -> dict[str, str]:
        """The packages that its users get with it, or must have."""
        return self._of("peerDependencies") | self._of("dependencies")

    @property
    def needed(self) -> dict[str, str]:
        """The required packages, and those for development that code imports or configurations of tests name."""
        texts = (_text(path) for path in self.tree.rglob("*") if path.is_file() and self._may_import(path))
        imported = {_package_of(module) for text in texts for module in _IMPORT.findall(text)}
        imported |= self._named_in_settings()
        used = {
            name: wanted
            for name, wanted in self._of("devDependencies").items()
            if name in imported or _NEEDED_BY_SETTINGS.match(name)
        }
        return {name: wanted for name, wanted in (used | self.required).items() if name != self.name}

    def tools(self, version: str) -> dict[str, str]:
        """Return the framework in ``version`` (empty: it needs no package), and what it needs to read the tests."""
        own: dict[str, str] = {self.runner: version} if version else {}
        is_typed = any(path.endswith(_TYPESCRIPT) for path in (*self.tests, *self.sources))
        return {**own, **(_TYPESCRIPT_LOADER if is_typed and self.runner not in ("vitest", "jest") else {})}

    @property
    def unread_options(self) -> tuple[str, ...]:
        """The modules that mocha would load first, which the runner here does not read; a sentence."""
        if self.runner != "mocha":
            return ()
        own = [self.settings.get("scripts", {}).get("test", ""), json.dumps(self.settings.get("mocha", ""))]
        texts = [
            *map(str, own),
            *(_text(path) for path in self.tree.glob(".mocharc*")),
            _text(self.tree / "test/mocha.opts"),
        ]
        named = {module for text in texts for pair in _REQUIRED.findall(text) for module in pair if module}
        if not named:
            return ()
        return (f"mocha's option require ({', '.join(sorted(named))}) is not read; tests that need it fail",)

    def _of(self, kind: str) -> dict[str, str]:
        return dict(self.settings.get(kind) or {})

    def _named_in_settings(self) -> set[str]:
        """Return the packages that strings of settings may mean: ``extends``, ``preset``, ``transform`` and others."""
        files = (path for path in self.tree.rglob("*") if _SETTINGS.match(path.name) and path.is_file())
        texts = [_text(path) for path in files if "node_modules" not in path.relative_to(self.tree).parts]
        texts += [json.dumps(self.settings[key]) for key in _OWN_SETTINGS if key in self.settings]
        return {_package_of(module) for text in texts for _, module in _QUOTED.findall(text)}

    def _may_import(self, path: Path) -> bool:
        """Return True for code, tests and what sets up tests; False for scripts and settings of other tools."""
        inside = PurePosixPath(path.relative_to(self.tree))
        is_other = _is_of_tools(inside) and not _SETTINGS.match(path.name)
        return is_javascript(path.name) and not set(inside.parts[:-1]) & _NO_SOURCES and not is_other


def read_settings(tree: Path) -> dict[str, Any]:
    """Return the content of ``package.json``; TaskError when it is missing or cannot be read."""
    try:
        content = json.loads((tree / "package.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TaskError(f"package.json cannot be read: {error}") from error
    return content if isinstance(content, dict) else {}


def read_folder(tree: Path, name: str = "") -> NodeFolder:
    """Return framework, tests and sources of ``tree``; TaskError without tests.

    Args:
        tree: Folder with a ``package.json``.
        name: Name of the package, default: that in ``package.json``.
    """
    settings = read_settings(tree)
    name = name or str(settings.get("name", ""))
    files = [path.relative_to(tree).as_posix() for path in sorted(tree.rglob("*")) if path.is_file()]
    code = [path for path in files if is_javascript(path) and "node_modules" not in PurePosixPath(path).parts]
    candidates = {path: _text(tree / path) for path in code if _may_be_test(path)}
    runner = _runner(settings, candidates)
    tests = tuple(path for path, text in candidates.items() if _USES.get(runner, _TEST_CALL).search(text))
    sources = _source_patterns(path for path in code if path not in candidates)
    if not tests or not sources:
        raise TaskError(f"{name}: {_what_lacks(tests, tuple(candidates), settings)}")
    return NodeFolder(name, tree, settings, runner, tests, sources)


def _what_lacks(tests: Sequence[str], candidates: Sequence[str], settings: Mapping[str, Any]) -> str:
    """Return why a project gives no tasks, of which tests or sources are missing."""
    if tests:
        return "no source file but tests, examples, scripts and settings of tools"
    declared = {**settings.get("dependencies", {}), **settings.get("devDependencies", {})}
    script = re.findall(r"[@\w/-]+", str(settings.get("scripts", {}).get("test", "")))
    other = next((known for known in _OTHER_FRAMEWORKS if known in declared or known in script), "")
    if other:
        return f"its tests run in {other}; the frameworks that run here are {', '.join(FRAMEWORKS)}"
    if candidates:
        shown = ", ".join(candidates[:3])
        return f"{len(candidates)} files look like tests ({shown}), and none calls {', '.join(FRAMEWORKS)}"
    return "no test file; tests lie in test, tests, __tests__ or spec, or are called test.*, *.test.* or *.spec.*"


def _runner(settings: Mapping[str, Any], texts: Mapping[str, str]) -> NodeRunner:
    """Return the framework that the test script names, else the test files, else the dependencies."""
    declared = {**settings.get("dependencies", {}), **settings.get("devDependencies", {})}
    script = str(settings.get("scripts", {}).get("test", ""))
    known: tuple[NodeRunner, ...] = ("vitest", "jest", "mocha", "tape")
    named = [runner for runner in known if re.search(rf"\b{runner}\b", script)]
    used: list[NodeRunner] = [runner for runner, use in _USES.items() if any(map(use.search, texts.values()))]
    listed = [runner for runner in known if runner in declared]
    return next(iter((*named, *used, *listed)), "node_test")


def _text(path: Path) -> str:
    """Return the text of a file; empty without one."""
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def _may_be_test(path: str) -> bool:
    """Return True for a file in a folder of tests, or with the name of one."""
    pure = PurePosixPath(path)
    return bool(_TEST_FOLDERS & set(pure.parts[:-1])) or bool(_TEST_NAME.search(pure.name))


def _is_of_tools(path: PurePosixPath) -> bool:
    """Return True for settings of tools, and for scripts and examples next to ``package.json``."""
    return bool(_CONFIGURATION.match(path.name) or (len(path.parts) == 1 and _TOP_SCRIPT.match(path.name)))


def _source_patterns(paths: Iterable[str]) -> tuple[str, ...]:
    """Return glob patterns of the files of ``paths`` that may be broken."""
    own = [PurePosixPath(path) for path in paths if not _NO_SOURCES & set(PurePosixPath(path).parts[:-1])]
    own = [path for path in own if not _is_of_tools(path) and not path.name.endswith((".d.ts", ".min.js"))]
    top = sorted(path.name for path in own if len(path.parts) == 1)
    below = sorted({f"{path.parts[0]}/**/*{path.suffix}" for path in own if len(path.parts) > 1})
    return (*top, *below)


def patterns_of_tests(paths: Iterable[str]) -> tuple[str, ...]:
    """Return patterns of the files of the folders of ``paths``, so that other releases' tests are found as well.

    Next to sources the pattern has the part of the name that makes a file a test.
    """
    return tuple(dict.fromkeys(sorted(_pattern(PurePosixPath(path)) for path in paths)))


def _pattern(path: PurePosixPath) -> str:
    folders = path.parts[:-1]
    if not folders:
        return path.name
    if _TEST_FOLDERS & set(folders):
        return f"{path.parent.as_posix()}/*{path.suffix}"
    end = _TEST_NAME.search(path.name)
    return f"{path.parent.as_posix()}/*{end[0]}" if end and end.start() else path.as_posix()


def _package_of(module: str) -> str:
    """Return the package of a module's name."""
    parts = module.split("/")
    return "/".join(parts[:2]) if module.startswith("@") else parts[0]
