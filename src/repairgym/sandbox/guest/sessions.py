"""A shell session without a resident shell: each command is a new bash that first restores the last one's state.

Reads the state that the previous bash wrote (opaque bytes that the host keeps), makes the text that restores it and
parses the state that the next bash writes. Guarantees: the exit status of a command is the kernel's wait status of its
bash, so no output can forge it; no process is alive between two commands, so files can be resolved, and the sandbox
frozen or forked, with its sessions; a state is untrusted, and only a process as untrusted as its writer reads it;
after a command without a complete state (deadline, signal, ``exec``) the previous state stays valid.

Kept: working folder, variables (exported or not, arrays too), functions, aliases, ``set`` and ``shopt`` options, traps
except ``EXIT``, umask, ``$?``. Not kept: background processes, open descriptors, positional parameters.
"""

from __future__ import annotations

import os
from typing import Dict, List, NamedTuple, Optional, Tuple

STATE_BYTES = 1 << 20
"""Bound on a state."""
_IN_FD, _OUT_FD = 198, 199
"""High numbers, because scripts use low ones for themselves."""
_BEGIN, _END = b"\0repairgym-state\0", b"\0repairgym-end\0"

_OWN_VARIABLES = "REPAIRGYM_FLAG REPAIRGYM_FLAGS REPAIRGYM_SAVED REPAIRGYM_STATUS"
# Variables that bash computes. Unset before the others are listed: an assignment would reset some counters.
_COMPUTED_VARIABLES = (
    "BASHPID BASH_ARGC BASH_ARGV BASH_ARGV0 BASH_CMDS BASH_COMMAND BASH_EXECUTION_STRING BASH_LINENO BASH_SOURCE "
    "BASH_SUBSHELL COMP_WORDBREAKS DIRSTACK EPOCHREALTIME EPOCHSECONDS FUNCNAME GROUPS HISTCMD LINENO PIPESTATUS "
    "RANDOM SECONDS SRANDOM _"
)
_TRAPS = "ALRM CHLD DEBUG ERR HUP INT PIPE QUIT RETURN TERM USR1 USR2 WINCH"
_SAVE = rf"""{{ REPAIRGYM_FLAGS=$-; set +xveu; }} 2>/dev/null
if [[ -z $REPAIRGYM_SAVED ]]; then REPAIRGYM_SAVED=1; {{
builtin printf '\0repairgym-state\0%s\0' "$PWD"
builtin shopt -p
builtin printf 'builtin cd -- %q\n' "$PWD"
builtin umask -p
builtin declare -f
builtin export -pf
builtin unset -v REPAIRGYM_COMMAND {_COMPUTED_VARIABLES}
builtin declare -p
builtin printf 'builtin unset -v {_OWN_VARIABLES}\n'
builtin alias -p
builtin trap -p {_TRAPS}
builtin set +o
for REPAIRGYM_FLAG in x v e u; do
if [[ $REPAIRGYM_FLAGS == *"$REPAIRGYM_FLAG"* ]]; then builtin printf 'set -%s\n' "$REPAIRGYM_FLAG"; fi; done
builtin printf '\0repairgym-end\0'
}} >&{_OUT_FD} 2>/dev/null; fi"""
# All on the first line up to the command, so that messages of the shell name the command's own lines.
_BOOT = f"""trap -- "$1" EXIT; set --; . /proc/self/fd/{_IN_FD} 2>/dev/null; eval -- "$REPAIRGYM_COMMAND"
{{ REPAIRGYM_STATUS=$?; }} 2>/dev/null
{_SAVE}
exit "$REPAIRGYM_STATUS"
"""
# Under ``set -e`` a failing status would end the new shell before its first command.
_LAST_STATUS = "\n[[ $- == *e* ]] || return %d\n"


class State(NamedTuple):
    """The saved state of a bash."""

    cwd: str
    text: bytes


def parse_state(data: bytes, is_truncated: bool) -> Optional[State]:
    """Return the last complete state in the output of a bash; None when there is none."""
    before, _, _ = data.rpartition(_END)
    _, begin, body = before.rpartition(_BEGIN)
    cwd, separator, text = body.partition(b"\0")
    if is_truncated or not begin or not separator or b"\0" in text:
        return None
    return State(os.fsdecode(cwd), text)


def restoring_text(state: bytes, command: bytes, last_status: int) -> bytes:
    """Return the input of the new bash: the command first, so that it runs even when the state is damaged."""
    quoted = b"'" + command.replace(b"'", b"'\\''") + b"'"
    close = f"exec {_IN_FD}<&-\n".encode()
    return close + b"REPAIRGYM_COMMAND=" + quoted + b"\n" + state + (_LAST_STATUS % last_status).encode()


def attach(text: bytes, record_fd: int) -> None:
    """In the child, give the new bash ``text`` on one descriptor and the record pipe on the other."""
    os.dup2(record_fd, _OUT_FD, inheritable=True)
    os.close(record_fd)
    source = os.memfd_create("repairgym-session", 0)
    os.dup2(source, _IN_FD, inheritable=True)
    os.close(source)
    view = memoryview(text)
    while view:
        view = view[os.write(_IN_FD, view) :]


def command_line() -> List[str]:
    """Return the command line of a bash that restores a state, runs the command and saves its own state."""
    return ["bash", "--norc", "--noprofile", "-c", _BOOT, "bash", _SAVE]


def starting_environment(state: bytes, environment: Dict[str, str]) -> Dict[str, str]:
    """Return the variables of the new bash; with a state only that sets them, or unset variables would return."""
    return {"PATH": environment.get("PATH", os.defpath)} if state else environment


def split_request(blobs: List[bytes]) -> Tuple[bytes, bytes, bytes]:
    """Split a request into standard input, command and state; reject a NUL byte, which no shell can read."""
    stdin, command, state = blobs
    if b"\0" in command:
        raise ValueError("got a command with a NUL byte; a shell cannot read it")
    return stdin, command, state
