"""A shell session without a resident shell: each command is a new bash that first becomes what the last one was.

Reads the state that the previous bash wrote (opaque bytes that the host keeps), makes the text that restores it and
parses what the next one leaves. Invariants: the exit status of a command is the kernel's wait status of its bash, so
nothing that is printed or written can forge it; no process is alive between two commands, so files can be resolved, and
the sandbox frozen or forked, with its sessions; a state is untrusted and only ever read by a process that is as
untrusted as the one that wrote it; a command that leaves no whole state (deadline, signal, ``exec``) leaves the one
before it in force.

Kept: working folder, variables (exported or not, arrays too), functions, aliases, ``set`` and ``shopt`` options, traps
but ``EXIT``, umask, ``$?``. Not kept: background processes, open descriptors, positional parameters.
"""

from __future__ import annotations

import os
from typing import Dict, List, NamedTuple, Optional, Tuple

STATE_BYTES = 1 << 20
"""Largest state that is kept."""
_IN_FD, _OUT_FD = 198, 199
"""High numbers, because scripts use low ones for themselves."""
_BEGIN, _END = b"\0repairgym-state\0", b"\0repairgym-end\0"

_OWN_VARIABLES = "REPAIRGYM_FLAG REPAIRGYM_FLAGS REPAIRGYM_SAVED REPAIRGYM_STATUS"
# What bash computes by itself. Unset before the others are listed: some would start counting anew when assigned.
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
    """What a bash left."""

    cwd: str
    text: bytes


def parse_state(data: bytes, is_truncated: bool) -> Optional[State]:
    """The last whole state in what a bash wrote; None when there is none."""
    before, _, _ = data.rpartition(_END)
    _, begin, body = before.rpartition(_BEGIN)
    cwd, separator, text = body.partition(b"\0")
    if is_truncated or not begin or not separator or b"\0" in text:
        return None
    return State(os.fsdecode(cwd), text)


def restoring_text(state: bytes, command: bytes, last_status: int) -> bytes:
    """What the new bash reads: the command first, so that it runs even when the state is damaged."""
    quoted = b"'" + command.replace(b"'", b"'\\''") + b"'"
    close = f"exec {_IN_FD}<&-\n".encode()
    return close + b"REPAIRGYM_COMMAND=" + quoted + b"\n" + state + (_LAST_STATUS % last_status).encode()


def attach(text: bytes, record_fd: int) -> None:
    """In the child: ``text`` on one descriptor of the new bash, the record pipe on the other."""
    os.dup2(record_fd, _OUT_FD, inheritable=True)
    os.close(record_fd)
    source = os.memfd_create("repairgym-session", 0)
    os.dup2(source, _IN_FD, inheritable=True)
    os.close(source)
    view = memoryview(text)
    while view:
        view = view[os.write(_IN_FD, view) :]


def command_line() -> List[str]:
    """The bash that restores a state, runs the command and saves its own state."""
    return ["bash", "--norc", "--noprofile", "-c", _BOOT, "bash", _SAVE]


def starting_environment(state: bytes, environment: Dict[str, str]) -> Dict[str, str]:
    """Variables of the new bash: later ones come from the state alone, or what was unset would come back."""
    return {"PATH": environment.get("PATH", os.defpath)} if state else environment


def split_request(blobs: List[bytes]) -> Tuple[bytes, bytes, bytes]:
    """Standard input, command and state of a request.

    Raises:
        ValueError: the command has a NUL byte, which no shell can read.
    """
    stdin, command, state = blobs
    if b"\0" in command:
        raise ValueError("got a command with a NUL byte; a shell cannot read it")
    return stdin, command, state
