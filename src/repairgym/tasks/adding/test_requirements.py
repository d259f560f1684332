"""The requirements of a project's tests, from what the project declares and what its tests import.

Reads the tree as text: metadata, extras, dependency groups, tox, requirement files, imports of test files. Makes
`Requirements`. Guarantees: no project code runs; pytest itself and tools that run no test (linters, coverage) are never
required; each requirement has a reason.
"""

import ast
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.markers import UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from repairgym.tasks.adding.layout import Layout, parsed
from repairgym.tasks.layers.environments import requirement_name
from repairgym.tasks.layers.metadata import read_settings
from repairgym.tasks.layers.requirement_pins import runtime_requirements

DISTRIBUTIONS: Mapping[str, str] = {
    "yaml": "pyyaml", "dateutil": "python-dateutil", "PIL": "pillow", "bs4": "beautifulsoup4", "attr": "attrs",
    "pkg_resources": "setuptools", "OpenSSL": "pyopenssl", "jwt": "pyjwt", "dotenv": "python-dotenv",
    "git": "gitpython", "sklearn": "scikit-learn", "cv2": "opencv-python", "magic": "python-magic",
    "slugify": "python-slugify", "Crypto": "pycryptodome", "serial": "pyserial", "markdown_it": "markdown-it-py",
    "google.protobuf": "protobuf", "_hypothesis_pytestplugin": "hypothesis", "ruamel": "ruamel.yaml", "zmq": "pyzmq",
    "docx": "python-docx", "pythonjsonlogger": "python-json-logger", "socks": "pysocks", "nacl": "pynacl",
    "websocket": "websocket-client", "distutils": "setuptools", "jose": "python-jose", "icu": "pyicu",
    "_pytest": "", "pytest": "", "pluggy": "",
}  # fmt: skip
"""Import name -> distribution where they differ; empty: the runner has it."""
REMOVED_MODULES: Mapping[str, str] = {"pkg_resources": "setuptools<82"}
"""Import name that the newest release of its distribution no longer has -> requirement with it."""
PLUGINS: Mapping[str, str] = {
    "mocker": "pytest-mock", "benchmark": "pytest-benchmark", "subtests": "pytest-subtests", "fs": "pyfakefs",
    "httpbin": "pytest-httpbin", "httpserver": "pytest-httpserver", "requests_mock": "requests-mock",
    "datadir": "pytest-datadir", "shared_datadir": "pytest-datadir", "lazy_shared_datadir": "pytest-datadir",
    "data_regression": "pytest-regressions", "file_regression": "pytest-regressions", "snapshot": "syrupy",
    "freezer": "pytest-freezer", "event_loop": "pytest-asyncio", "nursery": "pytest-trio", "vcr": "pytest-recording",
    "autojump_clock": "pytest-trio", "time_machine": "time-machine", "faker": "faker", "fp": "pytest-subprocess",
    "smtpserver": "pytest-localserver", "fake_process": "pytest-subprocess", "aiohttp_client": "pytest-aiohttp",
}  # fmt: skip
"""Fixture -> plugin that makes it."""
_MARKERS = {"asyncio": "pytest-asyncio", "trio": "pytest-trio", "anyio": "anyio"}
_NO_TEST_NEEDS = re.compile(
    r"^(pytest|tox|nox|coverage|pytest-(cov|xdist|sugar|randomly|timeout|rerunfailures|ruff|mypy|enabler|checkdocs|perf|"
    r"black|flake8|instafail|env|codspeed|mypy-plugins|run-parallel)|mypy|ruff|black|flake8.*|isort|pylint|pre-commit|build|"
    r"twine|wheel|pip|sphinx.*|furo|codecov|coveralls|jaraco-(packaging|tidelift)|types-.*|pyright|virtualenv|tox-.*|hatch|"
    r"pip-tools|bump.*|check-manifest|pyroma|typos|codespell|ty|zizmor)$"
)
_PLUGIN_LIKE = re.compile(r"^(pytest-.*|pyfakefs|requests-mock|syrupy|time-machine|anyio|faker)$")
_REQUIREMENT_FILES = (
    "*requirements*.txt",
    "requirements/*.txt",
    "requirements/*.in",
    "*/requirements*.txt",
    "test*-requirements.txt",
)
_STRING = re.compile(r"[\"']([A-Za-z0-9][\w.\-]*(?:\[[\w,\- ]+\])?\s*(?:[<>=!~][^\"']*)?)[\"']")


OWN_REQUIREMENT = "the package requires it"
"""Reason of a requirement that the package itself declares."""


@dataclass(frozen=True)
class Requirements:
    """Distributions that the tests need beyond pytest."""

    requirements: tuple[str, ...]
    reasons: Mapping[str, str]
    """Canonical name -> why it is required."""


def find_requirements(tree: Path, name: str, layout: Layout, test_files: Iterable[str]) -> Requirements:
    """Return the requirements of ``test_files``: declared by the project, imported, or plugins of used fixtures."""
    own = canonicalize_name(name)
    declared = declared_names(tree)
    chosen: dict[str, tuple[str, str]] = {}
    for requirement in _usable(runtime_requirements(tree)):
        chosen.setdefault(canonicalize_name(requirement.name), (_short(requirement), OWN_REQUIREMENT))
    files = [tree / path for path in test_files]
    support = [path for folder in {file.parent for file in files} for path in folder.glob("*.py")]
    readable = sorted({*files, *support, *(tree / "conftest.py",) * (tree / "conftest.py").is_file()})
    imports = _imports(readable, {*layout.import_names, *_local_names(tree, readable, declared)})
    for module, (is_needed, place) in imports.items():
        distribution = canonicalize_name(distribution_of(module))
        # A guarded import is optional: it counts where the project declares it.
        if distribution and (is_needed or distribution in declared):
            reason = f"{place.relative_to(tree).as_posix()} imports {module}"
            chosen.setdefault(distribution, (distribution, reason))
    for plugin, reason in _used_plugins(tree, readable, declared):
        chosen.setdefault(plugin, (plugin, reason))
    chosen = {k: v for k, v in chosen.items() if k != own and not _NO_TEST_NEEDS.match(k)}
    return Requirements(tuple(sorted(text for text, _ in chosen.values())), {k: why for k, (_, why) in chosen.items()})


def own_requirements(tree: Path) -> tuple[str, ...]:
    """Return what the package in ``tree`` itself requires, with upper bounds only."""
    return tuple(sorted({_short(requirement) for requirement in _usable(runtime_requirements(tree))}))


def distribution_of(module: str) -> str:
    """Return the likely distribution of an import name; empty where the runner has it."""
    return DISTRIBUTIONS.get(module, DISTRIBUTIONS.get(module.partition(".")[0], module.partition(".")[0]))


def _short(requirement: Requirement) -> str:
    """Return name, extras and upper bounds: lower bounds hold for the newest versions anyway."""
    bounds = sorted(str(s) for s in requirement.specifier if s.operator in ("<", "<=", "~=", "!="))
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    return canonicalize_name(requirement.name) + extras + ",".join(bounds)


def _usable(texts: Iterable[str]) -> Iterator[Requirement]:
    """Yield the requirements that hold on this machine without extras."""
    for text in texts:
        try:
            requirement = Requirement(text)
            if not requirement.url and (not requirement.marker or requirement.marker.evaluate({"extra": ""})):
                yield requirement
        except (InvalidRequirement, UndefinedEnvironmentName):
            continue


# --- declared --------------------------------------------------------------------------------------------------------


def declared_names(tree: Path) -> frozenset[str]:
    """Return canonical names in extras, groups, tox, requirement files and ``setup.py``: what developers install."""
    settings = read_settings(tree)
    tool = settings.get("tool", {})
    texts = list(_strings(settings.get("project", {}).get("optional-dependencies", {})))
    texts += _strings(settings.get("dependency-groups", {}))
    texts += _strings(tool.get("pdm", {}).get("dev-dependencies", {}))
    texts += [text for env in tool.get("hatch", {}).get("envs", {}).values() for text in _strings(env)]
    poetry = tool.get("poetry", {})
    groups = [
        poetry.get("dev-dependencies", {}),
        *(g.get("dependencies", {}) for g in poetry.get("group", {}).values()),
    ]
    texts += [name for group in groups for name in group]
    head = _read(tree / "PKG-INFO").partition("\n\n")[0]
    texts += [line.partition(";")[0] for line in re.findall(r"^Requires-Dist: (.+)$", head, flags=re.MULTILINE)]
    for path in (tree / "setup.cfg", tree / "tox.ini", *(p for glob in _REQUIREMENT_FILES for p in tree.glob(glob))):
        texts += [line.strip() for line in _read(path).splitlines()]
    texts += _STRING.findall(_read(tree / "setup.py"))
    names = (re.match(r"(?:[\w{},!.-]+:\s*)?([A-Za-z0-9][\w.-]*)\s*(?:\[|[<>=!~;#]|$)", text) for text in texts)
    return frozenset(canonicalize_name(match.group(1)) for match in names if match)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _strings(item)


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


# --- imported --------------------------------------------------------------------------------------------------------


def _local_names(tree: Path, files: Iterable[Path], declared: frozenset[str]) -> set[str]:
    """Return names that the tree itself gives to an import of the tests.

    Settings may put any folder on the path, so a module anywhere counts, unless the project declares its name.
    """
    near = {tree, *(parent for file in files for parent in (file.parent, file.parent.parent))}
    names: set[str] = set()
    for path in tree.rglob("*.py"):
        place = path.relative_to(tree)
        candidates = {place.stem, *place.parts[:-1]}
        is_near = path.parent in near
        names |= {place.parts[0]} | ({place.stem} if is_near else set())
        names |= {name for name in candidates if canonicalize_name(distribution_of(name)) not in declared}
    return names


def _imports(files: Iterable[Path], own: set[str]) -> dict[str, tuple[bool, Path]]:
    """Return third-party module -> (imported unconditionally, first file)."""
    modules: dict[str, tuple[bool, Path]] = {}
    for file in files:
        for name, is_needed in _imported_names(parsed(file)):
            top = name.partition(".")[0]
            if top in own or (top in sys.stdlib_module_names and top != "distutils"):
                continue
            key = name if name in DISTRIBUTIONS else top
            if key not in modules or (is_needed and not modules[key][0]):
                modules[key] = (is_needed, file)
    return modules


def _imported_names(module: ast.Module) -> Iterator[tuple[str, bool]]:
    """Yield imported names, and whether the import of the file itself needs them."""
    plain = {id(node) for node in module.body}
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            yield from ((alias.name, id(node) in plain) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module, id(node) in plain
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "importorskip":
            yield from ((str(value.value), False) for value in node.args[:1] if isinstance(value, ast.Constant))


def _used_plugins(tree: Path, files: Iterable[Path], declared: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Yield plugins whose fixtures or markers the tests use, and that the project declares or nobody else gives."""
    parameters: set[str] = set()
    fixtures: set[str] = set()
    marks: set[str] = set()
    for file in files:
        for node in ast.walk(parsed(file)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                arguments = {argument.arg for argument in node.args.args}
                is_fixture = any("fixture" in ast.dump(decorator) for decorator in node.decorator_list)
                fixtures |= {node.name} if is_fixture else set()
                parameters |= arguments if is_fixture or node.name.startswith("test") else set()
            elif (
                isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute) and node.value.attr == "mark"
            ):
                marks.add(node.attr)
    for fixture in sorted(parameters - fixtures):
        if (plugin := PLUGINS.get(fixture)) and (plugin in declared or fixture == "mocker"):
            yield plugin, f"tests use the fixture {fixture}"
    for mark in sorted(marks & _MARKERS.keys()):
        if _MARKERS[mark] in declared:
            yield _MARKERS[mark], f"tests are marked {mark}"


# --- plugins of an environment ---------------------------------------------------------------------------------------


def is_plugin_like(requirement: str) -> bool:
    """Return whether ``requirement`` is named like a pytest plugin."""
    return bool(_PLUGIN_LIKE.match(requirement_name(requirement)))


def plugins_of(environment: Path, requirements: Iterable[str]) -> tuple[str, ...]:
    """Return the import names of the pytest plugins among ``requirements`` and what they bring, in ``environment``."""
    wanted = {requirement_name(text) for text in requirements}
    plugins: list[str] = []
    for path in sorted(environment.glob("lib/python*/site-packages/*.dist-info/entry_points.txt")):
        name = canonicalize_name(path.parent.name.removesuffix(".dist-info").rpartition("-")[0])
        is_asked = name in wanted and _PLUGIN_LIKE.match(name)
        if is_asked or (name == "pytest-datadir" and "pytest-regressions" in wanted):
            plugins += _registered(path.read_text(encoding="utf-8"))
    return tuple(dict.fromkeys(plugins))


def own_plugins(tree: Path) -> tuple[str, ...]:
    """Return the import names of the pytest plugins that the project itself registers."""
    declared = read_settings(tree).get("project", {}).get("entry-points", {}).get("pytest11", {})
    files = [*tree.glob("*.egg-info/entry_points.txt"), *tree.glob("*/*.egg-info/entry_points.txt")]
    return tuple(
        dict.fromkeys([*map(str, declared.values()), *(n for file in files for n in _registered(_read(file)))])
    )


def _registered(entry_points: str) -> list[str]:
    """Return what the section ``pytest11`` of ``entry_points.txt`` names."""
    lines = entry_points.partition("[pytest11]")[2].partition("\n[")[0].splitlines()
    return [line.partition("=")[2].strip() for line in lines if "=" in line]
