"""Exit codes of `repairgym`: one table, shown by ``repairgym --help`` and in ``docs/reference/exit-codes.md``.

Reads an exception; makes an exit code and a message of one line. Invariant: each class of `repairgym.errors` has its
code in the table.
"""

import errno
from typing import NamedTuple

from repairgym.errors import DiskFullError, Interrupted, RepairGymError, disk_full_as_repairgym_error

BUG = 70
BROKEN_PIPE = 141


class ExitCode(NamedTuple):
    """One row of the table."""

    code: int
    word: str
    meaning: str
    remedy: str


EXIT_CODES = (
    ExitCode(0, "done", "done", "-"),
    ExitCode(1, "error", "something a person can act on went wrong", "the message says what to do"),
    ExitCode(
        2,
        "usage or configuration",
        "wrong usage: unknown option, unknown configuration key, value of the wrong type",
        "`--help`, `--dry-run`",
    ),
    ExitCode(
        3,
        "unusable file or folder",
        "a file or folder that cannot be used (task file, run folder, model folder)",
        "check the path",
    ),
    ExitCode(
        4,
        "package index",
        "no package index answers, or a package has gone from it",
        "`repairgym doctor`; set `PIP_INDEX_URL`",
    ),
    ExitCode(5, "sandbox", "the sandbox cannot do its work on this machine", "`repairgym doctor`"),
    ExitCode(
        6,
        "disk full",
        "the disk is full; what was written is intact",
        "free space, then the same command (`repairgym demo` with `--resume`)",
    ),
    ExitCode(7, "broken task", "a task is broken, uncertified or does not build", "`repairgym tasks verify`"),
    ExitCode(
        8,
        "model server",
        "a model server gave no usable reply, or rejected the request",
        "the message says which; `docs/howto/model.md`",
    ),
    ExitCode(
        9,
        "cluster",
        "a cluster cannot be reached, is too small, or a node of it does not fit",
        "`repairgym cluster check`; `docs/howto/cluster.md`",
    ),
    ExitCode(BUG, "bug", "a bug in RepairGym; a traceback was printed", "please report it"),
    ExitCode(
        130,
        "interrupted",
        "interrupted by Ctrl-C; the run folder is intact",
        "the same command (`repairgym demo` with `--resume`)",
    ),
    ExitCode(BROKEN_PIPE, "broken pipe", "the reader of the output went away", "-"),
)


def find_repairgym_error(error: BaseException) -> RepairGymError | None:
    """Return the deliberate error behind ``error``: itself, a member of an exception group, or a full disk (errno)."""
    if isinstance(error, RepairGymError):
        return error
    if isinstance(error, KeyboardInterrupt):
        return Interrupted(
            "interrupted; finished work is kept; the same command (repairgym demo: with --resume) resumes the run"
        )
    if isinstance(error, BaseExceptionGroup):
        known = (find_repairgym_error(member) for member in error.exceptions)
        return next((member for member in known if member), None)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return _disk_full(error)
    return None


def _disk_full(error: OSError) -> RepairGymError | None:
    try:
        with disk_full_as_repairgym_error(error.filename or "the run folder"):
            raise error
    except DiskFullError as full:
        return full
