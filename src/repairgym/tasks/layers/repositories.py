"""Git repositories as sources of pinned trees.

Reads a local clone (or clones once into ``<layers>/repositories``). Makes commits, texts and tree layers. Guarantees: a
tree layer holds the files of one commit and no ``.git``, so that no later history reaches an agent; files are written
from git's objects, so that no filter, hook or attribute of the repository runs; a tree with submodules, LFS pointers or
links that leave it is rejected with `UnsupportedTreeError`.
"""

import hashlib
import io
import os
import re
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal, Self

from repairgym.errors import IndexUnavailableError, InputError, TaskError
from repairgym.tasks.layers.catalogue import NpmPackage, NpmRepository, Package, Project, Repository
from repairgym.tasks.layers.metadata import parse_package_json, read_settings, write_metadata
from repairgym.tasks.layers.npm_registry import integrity_of_bytes
from repairgym.tasks.layers.package_index import Sdist
from repairgym.tasks.layers.store import LayerStore

COMMIT_TREE_FORMAT = 1
"""Part of each tree digest; grows when unpacking changes what a tree holds."""
GIT_TIMEOUT_S = 600.0
MAX_TREE_BYTES = 256 << 20
_LFS_POINTER = b"version https://git-lfs.github.com/spec/v1"
_SETTINGS = ("safe.directory=*", "core.fsmonitor=false", "core.hooksPath=/dev/null", "core.quotePath=false")
_SAFE = [part for setting in (*_SETTINGS, "protocol.ext.allow=never") for part in ("-c", setting)]


UnsupportedReason = Literal[
    "submodules", "lfs_pointers", "unsafe_links", "too_large", "missing_from_the_clone", "no_utf8"
]


class UnsupportedTreeError(TaskError):
    """A commit whose files cannot be pinned."""

    def __init__(self, reason: UnsupportedReason, path: str) -> None:
        self.reason = reason
        self.path = path
        super().__init__(f"{path}: {reason.replace('_', ' ')}; the commit is left out")

    def __reduce__(self) -> tuple[type[Self], tuple[str, str]]:
        """Pickle the error for the processes of a build."""
        return type(self), (self.reason, self.path)


@dataclass(frozen=True)
class Commit:
    """A commit on the first-parent line and its changed paths."""

    id: str
    parents: tuple[str, ...]
    date: str
    """RFC 3339 time of the committer."""
    message: str
    paths: tuple[str, ...]
    """Changed against the first parent, relative to the subdirectory."""


class GitRepository:
    """A repository on this machine's disk."""

    def __init__(self, folder: Path, subdirectory: str = "", is_offline: bool = False) -> None:
        """Use the clone (bare or not) in ``folder``; with ``is_offline`` a partial clone fetches nothing."""
        self.folder = folder
        self.is_offline = is_offline
        self.subdirectory = subdirectory.strip("/")

    @classmethod
    def open(cls, url: str, store: LayerStore, subdirectory: str = "") -> Self:
        """Return the repository at ``url``: a path is used directly, any other URL is cloned once.

        It raises IndexUnavailableError if it cannot be cloned, InputError if the path holds no git repository.
        """
        local = Path(url.removeprefix("file://")).expanduser()
        if local.exists():
            repository = cls(local, subdirectory)
            repository.git("rev-parse", "--git-dir")
            return repository
        if not store.config.is_index_allowed:
            raise IndexUnavailableError(
                f"{url} is not on this machine, and is_index_allowed = false forbids to clone it"
            )
        digest = hashlib.sha256(url.encode()).hexdigest()
        return cls(store.build_once("repositories", digest, lambda place: _clone(url, place)), subdirectory)

    def git(self, *arguments: str, stdin: bytes = b"") -> bytes:
        """Return the output of a git command; InputError if it fails or does not end in time."""
        argv = ["git", "--no-replace-objects", *_SAFE, "-C", str(self.folder), *arguments]
        environ = {**_environ(), **({"GIT_NO_LAZY_FETCH": "1"} if self.is_offline else {})}
        try:
            done = subprocess.run(argv, input=stdin, capture_output=True, timeout=GIT_TIMEOUT_S, env=environ)
        except subprocess.TimeoutExpired as error:
            raise InputError(f"git did not answer within {GIT_TIMEOUT_S:.0f} s in {self.folder}") from error
        if done.returncode:
            detail = " ".join(done.stderr.decode(errors="replace").split())[-300:]
            raise InputError(
                f"git {arguments[0]} in {self.folder} failed: {detail}; name a git repository and its commit"
            )
        return done.stdout

    def resolve(self, revision: str) -> str:
        """Return the full id of the commit ``revision``; InputError if there is none."""
        return self.git("rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}").decode().strip()

    def commits(self, revision: str) -> Iterator[Commit]:
        """Yield commits of the first-parent line up to ``revision``, newest first.

        A merge counts as one change against its first parent, as a squash does.
        """
        options = ["--first-parent", "--diff-merges=first-parent", "--no-renames", "--name-only"]
        where = ["--", self.subdirectory] if self.subdirectory else ["--"]
        text = self.git("log", *options, "--format=%x01%H%x00%P%x00%cI%x00%B%x02", self.resolve(revision), *where)
        for record in text.decode("utf-8", "replace").split("\x01")[1:]:
            head, _, names = record.partition("\x02")
            commit_id, parents, date, message = head.split("\0")
            paths = tuple(filter(None, map(self._relative, names.splitlines())))
            yield Commit(commit_id, tuple(parents.split()), date, message.strip(), paths)

    def _relative(self, path: str) -> str:
        prefix = f"{self.subdirectory}/" if self.subdirectory else ""
        return path[len(prefix) :] if path.startswith(prefix) and not path.startswith('"') else ""

    def merged_messages(self, commit: Commit) -> str:
        """Return the messages of the merged commits; empty for a commit that is no merge."""
        if len(commit.parents) < 2:
            return ""
        messages = self.git("log", "--format=%B", f"{commit.parents[0]}..{commit.id}", "--max-count=20")
        return messages.decode("utf-8", "replace")

    def text(self, commit_id: str, path: str) -> str | None:
        """Return the text of a file in a commit; None if the commit has no such file.

        It raises UnsupportedTreeError if the file is no UTF-8, and what `git` raises.
        """
        full_path = f"{self.subdirectory}/{path}" if self.subdirectory else path
        # Asked first, because a failure to read the file must not look as if there were none.
        entry = self.git("ls-tree", "-z", "--full-tree", commit_id, "--", full_path).partition(b"\t")[0].split()
        if b"blob" not in entry:
            return None
        try:
            return self.git("cat-file", "blob", entry[-1].decode()).decode("utf-8")
        except UnicodeDecodeError as error:
            raise UnsupportedTreeError("no_utf8", path) from error

    def plain_text(self, commit_id: str, path: str) -> str:
        """Return `text` of a file that is only searched; empty where there is none."""
        try:
            return self.text(commit_id, path) or ""
        except UnsupportedTreeError:
            return ""

    def version(self, commit_id: str) -> str:
        """Return the newest version tag before the commit, else the version in ``package.json``, else ``0``."""
        try:
            tag = self.git("describe", "--tags", "--abbrev=0", "--match", "*[0-9]*", commit_id).decode().strip()
        except InputError:
            stated = str(parse_package_json(self.plain_text(commit_id, "package.json")).get("version", ""))
            tag = stated if re.match(r"v?\d", stated) else "0"
        # Files and tasks are named after it, and a tag may be a path (`py3/v1.2`).
        return re.sub(r"[^\w.+!-]", "-", tag[next(i for i, character in enumerate(tag) if character.isdigit()) :])

    def tree_id(self, commit_id: str) -> str:
        """Return git's id of the commit's tree (of the subdirectory)."""
        return self.git("rev-parse", "--verify", f"{commit_id}:{self.subdirectory}").decode().strip()

    def write_tree(self, commit_id: str, place: Path) -> None:
        """Write the files of a commit below ``place``; `UnsupportedTreeError` if they cannot be pinned."""
        listing = self.git("ls-tree", "-r", "-z", "-l", f"{commit_id}:{self.subdirectory}").decode("utf-8", "replace")
        entries = [_parse_entry(line) for line in listing.split("\0") if line]
        for mode, _, size, path in entries:
            if mode == "160000":
                raise UnsupportedTreeError("submodules", path)
            if size < 0:
                raise UnsupportedTreeError("missing_from_the_clone", path)
        if sum(size for _, _, size, _ in entries) > MAX_TREE_BYTES:
            raise UnsupportedTreeError("too_large", f"{commit_id[:12]} (more than {MAX_TREE_BYTES >> 20} MiB)")
        blobs = self.read_blobs([blob_id for _, blob_id, _, _ in entries])
        for mode, blob_id, _, path in entries:
            _write_entry(place, mode, path, blobs[blob_id])

    def read_blobs(self, names: list[str]) -> dict[str, bytes]:
        """Return the content of each of ``names`` (ids, or ``COMMIT:PATH``) that exists; InputError for a folder."""
        raw = self.git("cat-file", "--batch", stdin="".join(f"{name}\n" for name in names).encode())
        blobs: dict[str, bytes] = {}
        place = 0
        for name in names:
            end = raw.index(b"\n", place)
            kind, _, size = raw[place:end].rpartition(b" ")
            place = end + 1
            if size == b"missing":
                continue
            if not kind.endswith(b" blob"):
                raise InputError(f"{name} in {self.folder} is no file")
            blobs[name] = raw[place : place + int(size)]
            place += int(size) + 1
        return blobs


def commit_tree(store: LayerStore, repository: GitRepository, commit_id: str, name: str, version: str) -> Path:
    """Return the tree layer of a commit, with metadata of ``name``; UnsupportedTreeError if it cannot be pinned."""
    address = f"commit-tree:{COMMIT_TREE_FORMAT}:{repository.tree_id(commit_id)}:{name}:{version}"

    def build(place: Path) -> None:
        repository.write_tree(commit_id, place)
        _write_version_files(place, version)
        write_metadata(place, name, version)

    return store.build_once("trees", hashlib.sha256(address.encode()).hexdigest(), build)


def snapshot_package(repository: Repository, store: LayerStore) -> Package:
    """Return the commit at ``revision`` as a package whose sdist, made from git's objects, is in the layer store.

    Raises:
        IndexUnavailableError: the repository cannot be cloned.
        InputError: there is no such repository or commit.
        UnsupportedTreeError: the files cannot be pinned.
    """
    clone = GitRepository.open(repository.url, store, repository.subdirectory)
    commit_id = clone.resolve(repository.revision)
    version = f"{clone.version(commit_id)}+git.{commit_id[:12]}"
    name = f"{repository.name}-{version}"
    archive = io.BytesIO()
    with tempfile.TemporaryDirectory() as folder, tarfile.open(fileobj=archive, mode="w") as tar:
        tree = Path(folder) / name
        tree.mkdir()
        clone.write_tree(commit_id, tree)
        _write_version_files(tree, version)
        tar.add(tree, name, filter=_without_owner_and_time)
    content = archive.getvalue()
    is_npm = isinstance(repository, NpmRepository)
    pin = integrity_of_bytes(content) if is_npm else hashlib.sha256(content).hexdigest()

    def write_archive(place: Path) -> None:
        (place / f"{name}.tar").write_bytes(content)

    store.build_once("sdists", Sdist(name=repository.name, version=version, sha256=pin).key, write_archive)
    fields = {field: getattr(repository, field) for field in Project.model_fields}
    if isinstance(repository, NpmRepository):
        return NpmPackage(**fields, version=version, sdists={version: pin}, runner=repository.runner)
    return Package(**fields, version=version, sdists={version: pin})


def _without_owner_and_time(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Make equal commits equal archives."""
    mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
    return member.replace(mtime=0, mode=mode, uid=0, gid=0, uname="", gname="", deep=False)


def _write_version_files(tree: Path, version: str) -> None:
    """Write the version files that a build would generate from git tags, if the project's settings name them."""
    tool = read_settings(tree).get("tool", {})
    scm = tool.get("setuptools_scm", {})
    hook = tool.get("hatch", {}).get("build", {}).get("hooks", {}).get("vcs", {})
    for name in (scm.get("write_to"), scm.get("version_file"), hook.get("version-file")):
        path = tree / str(name or "")
        if not name or path.exists() or ".." in PurePosixPath(name).parts or not path.parent.is_dir():
            continue
        numbers = tuple(int(part) if part.isdigit() else part for part in version.split("."))
        path.write_text(f'__version__ = version = "{version}"\n__version_tuple__ = version_tuple = {numbers!r}\n')


def _parse_entry(line: str) -> tuple[str, str, int, str]:
    """Return mode, blob, size (-1: the clone, a partial one, lacks the blob) and path of a line of ``ls-tree -l``."""
    head, _, path = line.partition("\t")
    mode, _, blob_id, size = head.split()
    return mode, blob_id, int({"-": 0, "BAD": -1}.get(size, size)), path


def _write_entry(place: Path, mode: str, path: str, content: bytes) -> None:
    parts = PurePosixPath(path).parts
    if ".." in parts or ".git" in parts or path.startswith("/"):
        raise UnsupportedTreeError("unsafe_links", path)
    if content.startswith(_LFS_POINTER):
        raise UnsupportedTreeError("lfs_pointers", path)
    file = place / path
    file.parent.mkdir(parents=True, exist_ok=True)
    if mode == "120000":
        target = os.fsdecode(content)
        inside = os.path.normpath(os.path.join(os.path.dirname(path), target))
        if target.startswith("/") or inside.startswith(".."):
            raise UnsupportedTreeError("unsafe_links", path)
        file.symlink_to(target)
        return
    if not file.parent.resolve().is_relative_to(place.resolve()):
        raise UnsupportedTreeError("unsafe_links", path)
    file.write_bytes(content)
    file.chmod(0o755 if mode == "100755" else 0o644)


def _clone(url: str, place: Path) -> None:
    argv = ["git", *_SAFE, "clone", "--quiet", "--bare", "--", url, str(place)]
    done = subprocess.run(argv, capture_output=True, timeout=GIT_TIMEOUT_S, env=_environ())
    if done.returncode:
        detail = " ".join(done.stderr.decode(errors="replace").split())[-300:]
        raise IndexUnavailableError(f"{url} cannot be cloned: {detail}; check the URL and the network")


def _environ() -> dict[str, str]:
    fixed = {"GIT_TERMINAL_PROMPT": "0", "GIT_CONFIG_NOSYSTEM": "1", "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    return {k: v for k, v in os.environ.items() if not k.startswith("GIT_")} | fixed
