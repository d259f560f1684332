"""Recipes of imported tasks: the interpreter, packages and installation that a record asks for.

Reads an `UnbuiltTask`, and for data sets whose records name no environment the user's own copies of environment files
and installation specs (`harness`). Makes a `BuildRecipe`. Guarantees: nothing is executed; a requirement that no
package index can serve (a path, a commit) is named in `unusable`, never dropped silently; a record that no recipe can
be made of raises `RecipeError` with the reason.
"""

import re
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from repairgym.errors import TaskError
from repairgym.records import Record
from repairgym.tasks.formats.base import get_commands, text_or_empty
from repairgym.tasks.imported.harness import HarnessFiles
from repairgym.tasks.imported.named_tests import SignedRunner, runner_of
from repairgym.tasks.layers.requirement_pins import runtime_requirements
from repairgym.tasks.unbuilt import UnbuiltTask

RecipeSource = Literal["record", "environment_file", "specs", "declared"]
_MINOR = re.compile(r"(\d+\.\d+)")
_EXTRAS = re.compile(r"install\b[^;&|]*?(?:\s\.|['\"]\.)\[(?P<extras>[\w,. -]+)\]")
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
_SETTINGS = {"pyproject.toml", "setup.cfg", "setup.py"}


class RecipeError(TaskError):
    """A record that no recipe can be made of."""


class BuildRecipe(Record):
    """The environment of one imported task, before anything is built."""

    source: RecipeSource
    """Origin of the packages."""
    python: str
    """Minor version, e.g. ``3.9``; empty: any."""
    requirements: tuple[str, ...] = ()
    """Packages that are there before the repository is installed."""
    is_complete: bool = False
    """True when `requirements` are exact and whole: they are installed as they are, without their dependencies."""
    extras: tuple[str, ...] = ()
    """Extras with which the repository is installed."""
    pre_install: tuple[str, ...] = ()
    """Shell commands in the repository before its installation."""
    uploaded_before: str = ""
    """RFC 3339 time or date: later uploads are ignored, except for exact requirements. Empty: no bound."""
    unusable: tuple[str, ...] = ()
    """Requirements that no package index serves."""
    runner: SignedRunner = "pytest"
    """Runner of the tests that the record names."""
    test_command: str = ""
    """Command that runs test files, without the files."""
    added_by_repair: tuple[str, ...] = ()
    """Requirements that only the repaired project declares: harnesses install it again after the patch."""


def find_recipe(task: UnbuiltTask, files: HarnessFiles, uploaded_before: str = "") -> BuildRecipe:
    """Return the recipe of ``task``; ``uploaded_before`` replaces the bound that the record gives.

    The record itself decides, then an environment file, then specs; without any, the requirements that the repository
    declares, as they were at the date of the commit.
    """
    runner = _runner_of(task)
    install = task.extra.get("install_config")
    specs = files.specs_of(task.repository, task.version, task.base_commit)
    fields: dict[str, Any] = install if isinstance(install, dict) else specs
    exact = files.environment_of(task.id) if not task.lock else (task.python, tuple(task.lock.splitlines()))
    source: RecipeSource = "record" if task.lock or install else "specs" if fields else "declared"
    if exact and not task.lock:
        source = "environment_file"
    given = exact[1] if exact else tuple(_listed(fields))
    requirements, unusable = _usable(given)
    commands = "\n".join((*task.build, *get_commands(fields, "install")))
    match, wanted = _EXTRAS.search(commands), (exact[0] if exact else "") or text_or_empty(fields.get("python"))
    minor = _MINOR.match(wanted or task.python)
    return BuildRecipe(
        source=source,
        python=minor[1] if minor else "",
        requirements=requirements,
        is_complete=bool(exact),
        extras=tuple(part.strip() for part in match["extras"].split(",")) if match else (),
        pre_install=get_commands(fields, "pre_install"),
        uploaded_before=uploaded_before or (task.created_at if source in ("record", "declared") else ""),
        unusable=unusable,
        runner=runner,
        test_command=" && ".join(get_commands(fields, "test_cmd")),
    )


def requirements_of_repair(task: UnbuiltTask) -> tuple[str, ...]:
    """Return the requirements that the repair of the pinned ``task`` adds to those of the agent's base."""
    before = {_distribution(line) for line in _declared(task.base_files)}
    return tuple(line for line in _declared(task.gold_files) if _distribution(line) not in before)


def _declared(files: Mapping[str, str | None]) -> tuple[str, ...]:
    with tempfile.TemporaryDirectory(prefix="repairgym-settings-") as folder:
        for name in _SETTINGS & files.keys():
            (Path(folder) / name).write_text(files[name] or "", encoding="utf-8")
        return runtime_requirements(Path(folder))


def _distribution(line: str) -> str:
    return canonicalize_name(Requirement(line).name)


def _runner_of(task: UnbuiltTask) -> SignedRunner:
    """Return the runner whose ids the tests of ``task`` have."""
    if not task.fail_to_pass:
        raise RecipeError("the record names no test that fails before the repair")
    if task.language not in ("", "python"):
        raise RecipeError(f"its language is {task.language}, and only Python is built")
    runner = runner_of((*task.fail_to_pass, *task.pass_to_pass))
    if runner is None:
        raise RecipeError(f"its tests are ids of no known runner: {task.fail_to_pass[0][:60]!r}")
    return runner


def _listed(fields: dict[str, Any]) -> Iterable[str]:
    """Return the requirements of specs: ``pip_packages``, and ``packages`` unless they name a file."""
    yield from get_commands(fields, "pip_packages")
    packages = text_or_empty(fields.get("packages"))
    if not packages.endswith((".txt", ".yml")):
        yield from (part.strip("'\"") for part in packages.split())


def _usable(lines: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Split requirement lines into those that a package index can serve and the others."""
    usable: dict[str, str] = {}
    unusable = []
    for line in (line.strip() for line in lines):
        if not line or line.startswith("#"):
            continue
        try:
            requirement = Requirement(line.partition(" #")[0].strip())
        except InvalidRequirement:
            unusable.append(line)
            continue
        if requirement.url or not _NAME.fullmatch(requirement.name):
            unusable.append(line)
        else:
            usable[requirement.name.lower().replace("_", "-")] = str(requirement)
    return tuple(usable.values()), tuple(unusable)
