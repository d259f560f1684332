"""Base files of imported tasks, pinned from local git clones.

Reads clones below one folder with the `git` of this machine. Makes `UnbuiltTask` records with `base_files`,
`gold_files` and the tree of the base commit. Guarantees: no network (a partial clone does not fetch); no work tree is
touched or read; no hook or filter of the clone runs; a task without pinned files keeps its other fields and the reason.
"""

import shutil
from pathlib import Path

from repairgym.diffs.apply import apply_patch
from repairgym.diffs.parse import parse_patch
from repairgym.errors import InputError
from repairgym.tasks.layers.repositories import GitRepository
from repairgym.tasks.unbuilt import UnbuiltTask


class CloneFolder:
    """Git clones in a folder: ``OWNER/NAME``, ``OWNER__NAME`` or ``NAME``, with or without ``.git``, bare or not."""

    def __init__(self, folder: Path) -> None:
        """Use the clones below ``folder``; InputError if it or git is missing."""
        if not folder.is_dir():
            raise InputError(f"there is no folder {folder} with clones; make it, or leave --repos out")
        if shutil.which("git") is None:
            raise InputError("--repos needs git, which is not installed here; install it, or leave --repos out")
        self._folder = folder

    def find(self, repository: str) -> Path:
        """Return the clone of ``owner/name``; InputError if there is none."""
        owner, _, name = repository.rpartition("/")
        names = [f"{owner}/{name}", f"{owner}__{name}", name] if owner else [name]
        for place in (self._folder / f"{stem}{ending}" for stem in names for ending in ("", ".git")):
            if name and ((place / ".git").exists() or (place / "objects").is_dir()):
                return place
        wanted = repository or "a repository without a name"
        raise InputError(f"no clone of {wanted}; expected {self._folder / names[-1]}")

    def pin(self, task: UnbuiltTask) -> UnbuiltTask:
        """Return ``task`` with the texts of the files that its patches touch, or with the failure in `pin_error`."""
        try:
            return task.model_copy(update={**self._pinned(task), "pin_error": ""})
        except InputError as error:
            return task.model_copy(update={"pin_error": str(error)})

    def _pinned(self, task: UnbuiltTask) -> dict[str, object]:
        if not task.base_commit:
            raise InputError("the record names no base commit")
        clone = GitRepository(self.find(task.repository), is_offline=True)
        try:
            tree = clone.tree_id(task.base_commit)
        except InputError as error:
            raise InputError(f"commit {task.base_commit} is not in {clone.folder}; fetch it there") from error
        patches = [parse_patch(patch) for patch in (task.bug_patch, task.gold_patch, task.test_patch)]
        changed = [file for patch in patches for file in patch]
        files = _read_files(clone, task.base_commit, sorted({file.old_path for file in changed if file.old_path}))
        files |= apply_patch(task.bug_patch, files.get)
        # Files that a patch adds are absent from the agent's base.
        base = {**{file.path: None for file in changed if file.old_path is None}, **files}
        return {
            "base_tree": tree,
            "base_files": dict(sorted(base.items())),
            "gold_files": dict(sorted(apply_patch(task.gold_patch, base.get).items())),
        }


def _read_files(clone: GitRepository, commit: str, paths: list[str]) -> dict[str, str | None]:
    """Return the texts of those of ``paths`` that ``commit`` has; InputError for a file that is no UTF-8 text."""
    blobs = clone.read_blobs([f"{commit}:{path}" for path in paths if "\n" not in path])
    texts: dict[str, str | None] = {}
    for name, content in blobs.items():
        path = name.removeprefix(f"{commit}:")
        try:
            texts[path] = content.decode()
        except UnicodeDecodeError as error:
            raise InputError(f"{path} is no UTF-8 text in commit {commit}") from error
    return texts
