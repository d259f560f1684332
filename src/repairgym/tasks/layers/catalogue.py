"""The catalogue of pinned packages and git repositories that tasks are made from.

Reads ``repairgym/data/catalogue.toml`` (or a user's file of the same form). Makes frozen `Package` and `Repository`
records. Guarantees: each project belongs to one split, each version has a pinned SHA-256, and names are unique.
"""

import hashlib
import re
import tomllib
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from pydantic import ValidationError, model_validator

from repairgym.errors import InputError, TaskError
from repairgym.records import Record, Split, TestRunner
from repairgym.tasks.layers.metadata import METADATA_FOLDER
from repairgym.tasks.layers.package_index import Sdist


def matching_files(tree: Path, patterns: Iterable[str]) -> tuple[str, ...]:
    """Return the relative paths of the files of ``tree`` that any of the glob ``patterns`` matches, sorted."""
    paths = {path for pattern in patterns for path in tree.glob(pattern) if path.is_file()}
    return tuple(sorted(path.relative_to(tree).as_posix() for path in paths))


def file_stem(name: str) -> str:
    """Return ``@scope/name`` of npm as ``@scope+name``, any other name as it is; `name_of_stem` reverses it."""
    return name.replace("/", "+")


def name_of_stem(stem: str) -> str:
    """Return the name of a project whose `file_stem` is ``stem``."""
    return stem.replace("+", "/")


class Project(Record):
    """A project: files that may be broken, deciding tests, and their requirements."""

    name: str
    split: Split
    root: str = ""
    """Folder, relative to the project's tree, that holds the import package (``src``)."""
    sources: tuple[str, ...]
    """Glob patterns of files that may be broken."""
    tests: tuple[str, ...]
    """Glob patterns of test files: fast and deterministic ones."""
    excluded: tuple[str, ...] = ()
    """Glob patterns taken out of both."""
    requirements: tuple[str, ...] = ()
    """Requirements of the tests beyond pytest."""
    plugins: tuple[str, ...] = ()

    @property
    def file_stem(self) -> str:
        """Its name in names of files (see `file_stem`)."""
        return file_stem(self.name)

    @property
    def test_runner(self) -> TestRunner:
        """The program that runs its tests."""
        return TestRunner()

    @property
    def source_paths(self) -> tuple[str, ...]:
        """Folders of the tree for ``sys.path``; sources that are all in ``src`` need no ``root``."""
        is_in_src = all(pattern.startswith("src/") for pattern in self.sources)
        return (self.root or ("src" if is_in_src else ""), METADATA_FOLDER)

    def source_files(self, tree: Path) -> tuple[str, ...]:
        """Return relative paths of the files that may be broken, sorted; TaskError without any."""
        return self._match(tree, self.sources, "sources")

    def test_files(self, tree: Path) -> tuple[str, ...]:
        """Return relative paths of the selected test files, sorted; TaskError without any."""
        return self._match(tree, self.tests, "tests")

    def _match(self, tree: Path, patterns: tuple[str, ...], field: str) -> tuple[str, ...]:
        matches = set(matching_files(tree, patterns)) - set(matching_files(tree, self.excluded))
        if not matches:
            raise TaskError(f"{self.name}: {field} = {list(patterns)} matches no file in {tree}; correct the catalogue")
        return tuple(sorted(matches))


class Removal(Record):
    """Names that a release uses of a dependency, and that newer versions of it lack."""

    release: str
    adapted: str = ""
    """The next release, which does not use them any more; empty for an aged release."""
    also_needed: tuple[str, ...] = ()
    """Requirements without which the next release breaks, too, by other names."""
    dependency: str
    names: tuple[str, ...]
    """With their modules, as the dependency has them."""
    words: tuple[str, ...]
    """As the code of the release has them."""
    good: str
    """Newest version of the dependency with all of them."""
    bad: str
    """The next version."""


class Package(Project):
    """A package with pinned sdists."""

    version: str
    """Version to mutate."""
    sdists: dict[str, str]
    """Version -> SHA-256 of its sdist, for `version` and every version in `releases` and `aged`."""
    num_tasks: int = 0
    """Mutation tasks of a full build with seed 0; spreads a split's cap over its packages."""
    releases: tuple[tuple[str, str], ...] = ()
    """Pairs (version with the bugs, next version)."""
    aged: tuple[str, ...] = ()
    """Releases to build and test with today's newest dependencies (source `breakages`)."""
    removals: tuple[Removal, ...] = ()
    """Names whose removal breaks an aged release, or that a release gave up (source `breakages`)."""

    @model_validator(mode="after")
    def _versions_are_pinned(self) -> Self:
        needed = {self.version, *self.aged, *(version for pair in self.releases for version in pair)}
        needed |= {version for removal in self.removals for version in (removal.release, removal.adapted) if version}
        missing = sorted(needed - set(self.sdists))
        if missing:
            raise ValueError(f"{self.name}: no SHA-256 in sdists for {', '.join(missing)}")
        return self

    def only(
        self,
        version: str,
        releases: tuple[tuple[str, str], ...] = (),
        aged: tuple[str, ...] = (),
        removals: tuple[Removal, ...] = (),
    ) -> Self:
        """Return this package with only these releases: the input of one unit of a build."""
        needed = {version, *aged, *(paired for pair in releases for paired in pair)}
        needed |= {name for removal in removals for name in (removal.release, removal.adapted)}
        sdists = {name: digest for name, digest in self.sdists.items() if name in needed}
        own = {"releases": releases, "aged": aged, "removals": removals}
        return self.model_copy(update={"version": version, "sdists": sdists, **own})

    def sdist(self, version: str = "") -> Sdist:
        """Return the pin of ``version`` (default: the mutated version)."""
        version = version or self.version
        return Sdist(name=self.name, version=version, sha256=self.sdists[version])


NodeRunner = Literal["tape", "mocha", "node_test", "vitest", "jest"]
"""Test framework of JavaScript."""
_NPM_NAME = re.compile(r"(@[\w~-][\w.~-]*/)?[\w~-][\w.~-]*")


class NodeProject(Project):
    """A project of JavaScript or TypeScript."""

    runner: NodeRunner
    """Framework of its tests. Its lock pins the framework, and what package and tests need."""

    @property
    def test_runner(self) -> TestRunner:
        """The framework."""
        return TestRunner(type=self.runner)

    @property
    def source_paths(self) -> tuple[str, ...]:
        """No folders: node has no path of modules."""
        return ()


class NpmPackage(NodeProject, Package):
    """A package of the npm registry whose archives hold their tests; `sdists` has the integrity of each archive."""

    @model_validator(mode="after")
    def _fits_node(self) -> Self:
        weak = [version for version, pin in self.sdists.items() if not pin.startswith("sha512-")]
        if not _NPM_NAME.fullmatch(self.name):
            raise ValueError(f"got the name {self.name!r}; expected one like qs or @fastify/cookie")
        if weak or self.requirements or self.plugins:
            raise ValueError(f"{self.name}: an [[npm]] entry has no requirements or plugins, and pins like sha512-...")
        return self


JAVA_REQUIREMENTS, GRADLE_REQUIREMENTS = ("java",), ("java-gradle",)
"""Stand for the toolchain of Java, with Maven or with Gradle, in place of requirements."""


class JavaPackage(Package):
    """A Java library of Debian's archive; `sdists` has the SHA-256 of its upstream archive after ``debian-``.

    ``name`` and the versions are those of the source package. Its builds are tasks (source `breakages`): the settings
    files are written from this entry, because the project's own name plugins that Debian does not have.
    """

    group: str
    artifact: str
    tool: Literal["maven", "gradle"] = "maven"
    sources: tuple[str, ...] = ("src/main/java/**/*.java",)
    tests: tuple[str, ...] = ("src/test/java/**/*Test.java",)
    """JUnit 4 classes that run on what a build made."""
    dependencies: tuple[str, ...] = ()
    """``group:artifact:version`` of the toolchain's Maven repository, beyond JUnit."""
    level: int = 8
    """Version of the language."""
    encoding: str = "UTF-8"

    @property
    def toolchain(self) -> tuple[str, ...]:
        """The name of its toolchain, in place of requirements."""
        return GRADLE_REQUIREMENTS if self.tool == "gradle" else JAVA_REQUIREMENTS

    @model_validator(mode="after")
    def _fits_debian(self) -> Self:
        weak = [version for version, pin in self.sdists.items() if not pin.startswith("debian-")]
        if weak or self.releases or self.aged or self.requirements or self.plugins:
            raise ValueError(
                f"{self.name}: a [[java]] entry has no releases, aged, requirements, plugins, and pins like debian-..."
            )
        return self


CHANGELOGS = ("CHANGE*", "HISTORY*", "NEWS*", "docs/change*", "docs/history*")
"""Patterns of files that tell what a commit changes."""


class Repository(Project):
    """A git repository: its bug-fix commits become tasks (`history`), and mutants of its newest one (`mutations`)."""

    url: str
    """Path or URL for git."""
    revision: str = "HEAD"
    """Commit, tag or branch with the history; a pinned commit gives the same tasks next year."""
    subdirectory: str = ""
    """The project's root in the repository; every other path is relative to it."""
    changelog: tuple[str, ...] = CHANGELOGS
    """Glob patterns of files with added lines about a fix."""
    issues: str = ""
    """JSON file of issues: ``{"12": {"title": ..., "body": ...}}``, or a list of such objects with ``number``."""


class NpmRepository(NodeProject, Repository):
    """A git repository with a ``package.json``; its lock is that of an `NpmPackage` of its name."""

    @model_validator(mode="after")
    def _fits_node(self) -> Self:
        if "/" in self.name or self.requirements or self.plugins:
            raise ValueError(f"{self.name}: an [[npm_repository]] entry has no scope, requirements or plugins")
        return self


ProjectT = TypeVar("ProjectT", bound=Project)


class Catalogue(Record):
    """All packages."""

    package: tuple[Package, ...] = ()
    npm: tuple[NpmPackage, ...] = ()
    java: tuple[JavaPackage, ...] = ()
    repository: tuple[Repository, ...] = ()
    npm_repository: tuple[NpmRepository, ...] = ()

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        if not any((self.package, self.npm, self.java, self.repository, self.npm_repository)):
            raise ValueError("it lists no [[package]], [[npm]], [[java]], [[repository]] or [[npm_repository]]")
        packages, repositories = (*self.package, *self.npm, *self.java), (*self.repository, *self.npm_repository)
        # The last: one name, one lock.
        for projects in (packages, repositories, (*self.npm, *self.npm_repository)):
            names = [project.name for project in projects]
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise ValueError(f"packages listed twice: {', '.join(twice)}")
        splits = {package.name: package.split for package in (*self.package, *self.npm)}
        astray = sorted(r.name for r in self.repository if splits.get(r.name, r.split) != r.split)
        if astray:
            raise ValueError(f"package and repository of one name in different splits: {', '.join(astray)}")
        return self

    def select(self, names: tuple[str, ...] = ()) -> tuple[Package, ...]:
        """Return the named packages (all for no names); InputError for a name that is not in the catalogue."""
        return self._select((*self.package, *self.npm, *self.java), names)

    def select_repositories(self, names: tuple[str, ...] = ()) -> tuple[Repository, ...]:
        """Return the named repositories (all for no names); InputError for a name that is not in the catalogue."""
        return self._select((*self.repository, *self.npm_repository), names)

    def _select(self, projects: tuple[ProjectT, ...], names: tuple[str, ...]) -> tuple[ProjectT, ...]:
        repositories = (*self.repository, *self.npm_repository)
        known = {project.name for project in (*self.package, *self.npm, *self.java, *repositories)}
        unknown = [name for name in names if name not in known]
        if unknown:
            raise InputError(f"no package {', '.join(unknown)} in the catalogue; it holds {', '.join(sorted(known))}")
        return tuple(project for project in projects if project.name in names) if names else projects

    def requirement_sets(self) -> tuple[tuple[str, ...], ...]:
        """Return the distinct test requirements: one environment each."""
        projects = (*self.package, *self.repository)
        sets = {tuple(sorted(project.requirements)) for project in projects}
        return tuple(sorted(sets | {package.toolchain for package in self.java}))


def shipped_path(path: Path) -> Path:
    """Return ``path``; a relative ``catalog/...`` that does not exist is the file of that name in the package."""
    if path.is_absolute() or path.parts[:1] != ("catalog",) or path.exists():
        return path
    return Path(str(resources.files("repairgym") / "data")) / path


def load_catalogue(path: Path | None = None) -> Catalogue:
    """Return the catalogue in ``path`` (default: the demo's; see `shipped_path`); InputError for a broken file."""
    source = shipped_path(path) if path else resources.files("repairgym") / "data" / "catalogue.toml"
    try:
        entries = tomllib.loads(source.read_text(encoding="utf-8"))
        return Catalogue.model_validate(entries)
    except ValidationError as error:
        raise InputError(f"catalogue {source} cannot be used: {_explain(error, entries)}") from error
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"catalogue {source} cannot be used: {error}") from error


def _explain(error: ValidationError, entries: dict[str, Any]) -> str:
    """Return each fault with the name of its entry."""
    faults: list[str] = []
    for fault in error.errors(include_url=False, include_input=False):
        kind, *place = fault["loc"] or ("catalogue",)
        listed = entries.get(str(kind))
        if place and isinstance(listed, list) and isinstance(listed[int(place[0])], dict):
            place = [listed[int(place[0])].get("name", f"number {int(place[0]) + 1}"), *place[1:]]
        faults.append(f"{' '.join(map(str, [kind, *place]))}: {fault['msg']}")
    return "; ".join(faults)


def catalogue_digest(packages: tuple[Project, ...]) -> str:
    """Return the SHA-256 over ``packages``, the input of a build."""
    return hashlib.sha256("".join(package.digest() for package in packages).encode()).hexdigest()
