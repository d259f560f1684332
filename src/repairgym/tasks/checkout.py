"""Checkouts: the tree of a task as an agent is given it, in a folder of the host, as a git repository with one commit.

Reads a certified task and its layers. Makes a folder that any agent can work in; one of node has a copy of its
packages, which no commit holds. Guarantees: the folder holds neither
the hidden tests nor the repair nor any history; equal tasks have equal commits; no code of the project runs, and no
hook or setting of the user's git has a part in it; a folder with files is left alone.
"""

import os
import shutil
import subprocess
from pathlib import Path

from repairgym.errors import InputError
from repairgym.records import Task
from repairgym.tasks.build.validation import pinned_tree
from repairgym.tasks.imported.installation import write_below
from repairgym.tasks.layers.environments import build_environment
from repairgym.tasks.layers.metadata import METADATA_FOLDER
from repairgym.tasks.layers.store import LayerStore

_TIMEOUT_S = 300.0
_DATE = "2000-01-01T00:00:00Z"
"""Fixed, so that equal trees have equal commits."""
_IDENTITY = {f"GIT_{who}_{what}": value for who in ("AUTHOR", "COMMITTER") for what, value in
             (("NAME", "agent"), ("EMAIL", "agent@localhost"), ("DATE", _DATE))}  # fmt: skip
_NO_SETTINGS = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull, "GIT_TERMINAL_PROMPT": "0"}
_NO_FILES = [part for name in ("excludesFile", "attributesFile") for part in ("-c", f"core.{name}={os.devnull}")]
"""Git reads both from the user's configuration folder even where no setting names them."""
_ATTRIBUTES = "* -text -ident !eol !filter !diff !working-tree-encoding\n"
"""Overrides every other attribute, so that files are committed and compared as they are, with their line ends."""


def checkout(task: Task, store: LayerStore, folder: Path) -> str:
    """Write the agent's tree of ``task`` into ``folder``; return the id of its commit.

    Raises:
        InputError: the folder has files, or git is missing or failed.
        TaskError, IndexUnavailableError: the tree is not on this machine and cannot be made.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} is not empty; name a new folder")
    tree = pinned_tree(task, store)
    python_only = (METADATA_FOLDER,) if task.runner.is_node else ()
    ignored = shutil.ignore_patterns("__pycache__", ".git", *python_only)
    shutil.copytree(tree, folder, symlinks=True, ignore=ignored, dirs_exist_ok=True)
    for path in (folder, *(path for path in folder.rglob("*") if not path.is_symlink())):
        path.chmod(path.stat().st_mode | 0o600)  # layers are read-only
    write_below(folder, {path: None if text is None else text.encode() for path, text in task.base_files.items()})
    _git(folder, "init", "-q", "-b", "main", "--template=")
    (folder / ".git/info").mkdir()
    (folder / ".git/info/attributes").write_text(_ATTRIBUTES)
    for arguments in (_ADD, _COMMIT):
        _git(folder, *arguments)
    if task.runner.is_node:
        # The packages of the certificate; the project's own lock may be absent, or another one.
        modules = build_environment(store, task.environment.lock)[1] / "node_modules"
        shutil.copytree(modules, folder / "node_modules", symlinks=True)
        (folder / ".git/info/exclude").write_text("/node_modules/\n")
    return _git(folder, "rev-parse", "HEAD")


_ADD = ("add", "-A", "-f")
"""Files that the project's or the user's ignore rules name are part of the tree, too: a repair may be in one."""
_COMMIT = ("commit", "-q", "--allow-empty", "--no-gpg-sign", "-m", "The project")


def _git(folder: Path, *arguments: str) -> str:
    environ = {**{name: value for name, value in os.environ.items() if not name.startswith("GIT_")}, **_NO_SETTINGS}
    argv = ["git", *_NO_FILES, "-c", "core.autocrlf=false", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_TIMEOUT_S, env={**environ, **_IDENTITY})
    except FileNotFoundError as error:
        raise InputError("a checkout needs git, which is not installed here; install it") from error
    if done.returncode:
        raise InputError(f"git {arguments[0]} failed in {folder}: {done.stderr.strip()[-300:]}")
    return done.stdout.strip()
