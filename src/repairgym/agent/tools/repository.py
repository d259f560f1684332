"""The tree of a sandbox as a git repository with one commit, which holds what the agent is given and nothing else."""

from repairgym.errors import SandboxError
from repairgym.sandbox.base import Sandbox

_FOLDER = "/tmp/.repository.git"
"""Outside of the tree, so that it is no change of it."""
_DATE = "2000-01-01T00:00:00Z"
"""Fixed, so that equal trees have equal commits."""
_COMMANDS = (
    f"git init -q -b main --separate-git-dir {_FOLDER} "
    "&& git config user.name agent && git config user.email agent@localhost "
    f"&& git add -A && GIT_AUTHOR_DATE={_DATE} GIT_COMMITTER_DATE={_DATE} git commit -q --allow-empty -m 'The project'"
)
_TIMEOUT_S = 60.0


async def make_repository(sandbox: Sandbox) -> None:
    """Commit the tree of ``sandbox``; SandboxError where it has no git, or git failed."""
    result = await sandbox.exec(("/bin/sh", "-c", _COMMANDS), timeout_s=_TIMEOUT_S)
    if result.exit_status != 0:
        said = result.stderr.decode("utf-8", "replace").strip()[-300:]
        raise SandboxError(f"the tree could not be made a git repository ({said}); set has_git=false")
