"""Deliberate errors of RepairGym, and the exit code of each (table: `docs/reference/exit-codes.md`).

A failure of the *repair* is never an exception: it is a :class:`repairgym.records.Verdict`. An exception raised
inside an episode is an infrastructure failure and makes the verdict *invalid*, never a reward of 0.
"""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_NO_ROOM_BYTES = 64 << 10
"""Less than one block of a tensor file."""


def install_hint(extra: str) -> str:
    """Return how to install ``extra`` from a checkout or a git URL; RepairGym is on no package index."""
    return f"pip install -e '.[{extra}]' in a checkout, or pip install 'repairgym[{extra}] @ git+URL'"


class RepairGymError(Exception):
    """Base of all deliberate errors: one line with the actual value, the expected value and the remedy."""

    exit_code: int = 1


class ConfigError(RepairGymError, ValueError):
    """Settings that cannot be used: unknown key, wrong type, or values that do not fit model, machine or tasks."""

    exit_code = 2


class InputError(RepairGymError, ValueError):
    """A path named by the user that cannot be used, whatever the settings: model folder, task file, run folder."""

    exit_code = 3


class ModelFolderError(InputError):
    """A folder that does not hold a Hugging Face causal language model with a tokenizer."""


class IndexUnavailableError(RepairGymError, ConnectionError):
    """No package index could be reached."""

    exit_code = 4


class PackageNotFoundError(IndexUnavailableError):
    """The index answered, but the package, version or sdist is not there."""


class RegistryUnavailableError(IndexUnavailableError):
    """No image registry answers, or it rejects the request, or it lacks the image."""


class ImageNotFoundError(RegistryUnavailableError):
    """The registry answered, but the image is not there, or not for this user."""


class SandboxError(RepairGymError, RuntimeError):
    """The sandbox could not do its work; says nothing about the code inside."""

    exit_code = 5


class SandboxContentError(SandboxError):
    """The files of the code inside prevent the operation: no room, too many bytes or files, or a file in the way.

    The only sandbox error that is caused by the code. Grading counts it as a failure, never as *invalid*; otherwise
    failing code could evade its verdict. A retry in another sandbox gives the same error.
    """


class SandboxUnavailableError(SandboxError):
    """This machine cannot provide the requested isolation, e.g. has no user namespaces."""


class SandboxLostError(SandboxError):
    """A live sandbox or its spawner ended unexpectedly."""


class ReplayDiffersError(RepairGymError, RuntimeError):
    """A recorded turn had another prompt, state or observation when it was replayed; the episode starts again."""


class KnowledgeUnavailableError(RepairGymError, RuntimeError):
    """The knowledge base cannot be read now; says nothing about the agent."""


class DiskFullError(RepairGymError, OSError):
    """The disk is full; earlier files are intact."""

    exit_code = 6


class TaskError(RepairGymError, RuntimeError):
    """A task that is broken, does not build or whose certificate does not hold; episodes with nothing to learn."""

    exit_code = 7


class ModelServerError(RepairGymError, RuntimeError):
    """A model server gave no usable reply in all attempts; says nothing about the episode."""

    exit_code = 8


class ModelReplyError(ModelServerError):
    """A reply that cannot be used: cut off, without choices, or with counts that contradict what it holds."""


class ServerDownError(ModelServerError):
    """No connection or no reply in time, in all attempts; another server may work."""


class ServerRejectedError(ModelServerError):
    """A request that the server will reject again: wrong key, unknown model or unknown parameter."""

    status: int | None = None
    """Of the server's answer, where it gave one."""


class StaleWeightsError(ServerRejectedError):
    """A server that samples with weights that the run did not load, or no longer uses."""


class PromptTooLongError(ModelServerError):
    """The prompt leaves no room for a token in the server's context; the episode ends, but does not fail."""


class McpServerError(RepairGymError, ConnectionError):
    """A server of tools behind a URL gives no usable answer; says nothing about the agent."""


class RepairInSightError(RepairGymError, ValueError):
    """The programs of the agent hold the package of the task, in which its repair could be read."""

    exit_code = 2


class ClusterError(RepairGymError, RuntimeError):
    """A cluster that cannot be reached, has no room for a worker, or whose nodes do not fit this program."""

    exit_code = 9


class NotSolvedError(RepairGymError):
    """No patch is shown to repair the task; the run is whole, and its evidence is stored."""

    exit_code = 10


class Interrupted(RepairGymError):
    """Ctrl-C: the run folder is resumable."""

    exit_code = 130


@contextmanager
def disk_full_as_repairgym_error(path: object) -> Iterator[None]:
    """Turn a full disk while writing ``path`` into :class:`DiskFullError`, for any writer.

    Python raises ``ENOSPC`` or ``EDQUOT``; shutil and safetensors raise errors of their own that quote the system;
    torch raises a ``RuntimeError`` about positions in its file, so the free space of the device decides.

    Raises:
        DiskFullError: the device that holds ``path`` has no room left.
    """
    try:
        yield
    except Exception as error:
        if not _is_disk_full(error, path):
            raise
        raise disk_full_error(path) from error


def disk_full_error(path: object) -> DiskFullError:
    """Return the error of a full disk while ``path`` is written."""
    remedy = "free some, then run the command again (repairgym demo: with --resume)"
    return DiskFullError(f"no space left on the device that holds {path}; {remedy}")


def _is_disk_full(error: Exception, path: object) -> bool:
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    if os.strerror(errno.ENOSPC) in str(error) or os.strerror(errno.EDQUOT) in str(error):
        return True
    if not isinstance(error, RuntimeError) or isinstance(error, RepairGymError):
        return False
    folder = next((place for place in Path(str(path)).absolute().parents if place.is_dir()), Path("/"))
    return shutil.disk_usage(folder).free < _NO_ROOM_BYTES
