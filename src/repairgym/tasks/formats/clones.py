"""Base files of imported tasks, pinned from local git clones.

Reads clones below one folder with the `git` of this machine. Makes `UnbuiltTask` records with `base_files`,
`gold_files` and the tree of the base commit. Guarantees: no network (a partial clone does not fetch); no work tree is
touched or read; no hook or filter of the clone runs; a task without pinned files keeps its other fields and the reason.
"""

import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from repairgym.diffs.apply import apply_patch
from repairgym.diffs.parse import parse_patch
from repairgym.errors import InputError
from repairgym.tasks.unbuilt import UnbuiltTask

_GIT_TIMEOUT_S = 60.0


class CloneError(InputError):
    """A clone that is missing, or that does not hold what a task needs."""


class CloneFolder:
    """Git clones in a folder: ``OWNER/NAME``, ``OWNER__NAME`` or ``NAME``, with or without ``.git``, bare or not."""

    def __init__(self, folder: Path) -> None:
        """Use the clones below ``folder``.

        Raises:
            InputError: there is no such folder, or no git.
        """
        if not folder.is_dir():
            raise InputError(f"there is no folder {folder} with clones; make it, or leave --repos out")
        if shutil.which("git") is None:
            raise InputError("--repos needs git, which is not installed here; install it, or leave --repos out")
        self._folder = folder

    def find(self, repository: str) -> Path:
        """Return the clone of ``owner/name``.

        Raises:
            CloneError: there is none.
        """
        owner, _, name = repository.rpartition("/")
        names = [f"{owner}/{name}", f"{owner}__{name}", name] if owner else [name]
        for place in (self._folder / f"{stem}{ending}" for stem in names for ending in ("", ".git")):
            if name and ((place / ".git").exists() or (place / "objects").is_dir()):
                return place
        wanted = repository or "a repository without a name"
        raise CloneError(f"no clone of {wanted}; expected {self._folder / names[-1]}")

    def pin(self, task: UnbuiltTask) -> UnbuiltTask:
        """Return ``task`` with the texts of the files that its patches touch, or with the failure in `pin_error`."""
        try:
            return task.model_copy(update={**self._pinned(task), "pin_error": ""})
        except InputError as error:
            return task.model_copy(update={"pin_error": str(error)})

    def _pinned(self, task: UnbuiltTask) -> dict[str, object]:
        if not task.base_commit:
            raise CloneError("the record names no base commit")
        clone = self.find(task.repository)
        tree = _git(clone, "rev-parse", "--verify", "--quiet", f"{task.base_commit}^{{tree}}")
        if tree is None:
            raise CloneError(f"commit {task.base_commit} is not in {clone}; fetch it there")
        patches = (task.bug_patch, task.gold_patch, task.test_patch)
        files: dict[str, str | None] = dict(read_files(clone, task.base_commit, _old_paths(patches)))
        files |= apply_patch(task.bug_patch, files.get)
        # Files that a patch adds are absent from the agent's base.
        added = {file.path: None for patch in patches for file in parse_patch(patch) if file.old_path is None}
        base = {**added, **files}
        return {
            "base_tree": tree.decode().strip(),
            "base_files": dict(sorted(base.items())),
            "gold_files": dict(sorted(apply_patch(task.gold_patch, base.get).items())),
        }


def _old_paths(patches: Iterable[str]) -> list[str]:
    return sorted({file.old_path for patch in patches for file in parse_patch(patch) if file.old_path})


def read_files(clone: Path, commit: str, paths: Iterable[str]) -> dict[str, str]:
    """Read the texts of ``paths`` in ``commit``; missing paths are left out.

    Raises:
        CloneError: git cannot read them, or a file is no UTF-8 text.
    """
    wanted = [path for path in paths if "\n" not in path]
    if not wanted:
        return {}
    request = "".join(f"{commit}:{path}\n" for path in wanted).encode()
    answer = _git(clone, "cat-file", "--batch", text=request)
    if answer is None:
        raise CloneError(f"git cannot read {clone}; check it with: git fsck")
    texts: dict[str, str] = {}
    for path in wanted:
        head, _, answer = answer.partition(b"\n")
        kind, _, size = head.rpartition(b" ")
        if not kind.endswith(b" blob"):
            if not head.endswith(b" missing"):
                raise CloneError(f"{path} is no file in commit {commit}")
            continue
        content, answer = answer[: int(size)], answer[int(size) + 1 :]
        try:
            texts[path] = content.decode()
        except UnicodeDecodeError as error:
            raise CloneError(f"{path} is no UTF-8 text in commit {commit}") from error
    return texts


def _git(clone: Path, *arguments: str, text: bytes = b"") -> bytes | None:
    """Return the output of git; None when it fails.

    Raises:
        CloneError: it does not end in time.
    """
    environment = {
        "PATH": os.environ.get("PATH", ""),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "LC_ALL": "C",
    }
    command = ["git", "-c", "safe.directory=*", "-c", "core.fsmonitor=false", "-C", str(clone), *arguments]
    try:
        done = subprocess.run(command, input=text, capture_output=True, env=environment, timeout=_GIT_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise CloneError(f"git did not answer within {_GIT_TIMEOUT_S:.0f} s in {clone}") from error
    return done.stdout if done.returncode == 0 else None
