"""Code of agents that runs inside a sandbox, on the task's Python and with its standard library only."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

_STDIO = Path(__file__).with_name("stdio.py")


def stdio_client(protocol: Literal["acp", "mcp"], text: str, command: Sequence[str]) -> tuple[str, ...]:
    """Return the command that starts ``command`` in a sandbox and speaks ``protocol`` with it (see `stdio`)."""
    return ("python", "-I", "-c", _STDIO.read_text(encoding="utf-8"), protocol, text, *command)
