"""State that lasts: shell sessions (state between commands, forgery, deadlines), snapshots and forks."""

from repairgym.errors import InputError, SandboxError
from repairgym.sandbox.base import ExecResult, Sandbox, ShellSession
from repairgym.sandbox.conformance.runs import TIMEOUT_S, require, require_output, require_raises, shell
from repairgym.sandbox.conformance.site import Site, on_sandbox, on_site

_SHORT_S = 0.7
_CHAIN = 12


async def _run(session: ShellSession, command: str, timeout_s: float = TIMEOUT_S, stdin: bytes = b"") -> ExecResult:
    return await session.run(command, timeout_s=timeout_s, stdin=stdin)


async def _require_output(session: ShellSession, command: str, expected: bytes) -> None:
    result = await _run(session, command)
    require(result.stdout == expected, f"{expected!r} of {command!r}", result)


@on_sandbox()
async def session_state(sandbox: Sandbox) -> None:
    """Folder, variables of every kind, functions, aliases, options and ``$?`` stay; each session has its own."""
    first, second = await sandbox.open_session(), await sandbox.open_session("two", {"EXTRA": "x y"})
    start = "cd shop; export A=$'x\\ny'; b='it'\"'\"'s'; c=(1 '2 3'); declare -A d=([k]=v); f() { echo f $b; }; "
    await _run(first, start + "alias hi='echo alias'; shopt -s expand_aliases; set -o pipefail; unset TZ; (exit 7)")
    shown = 'echo "$?$A|$b|${c[1]}|${d[k]}|${TZ-none}"; f; hi; echo ${PWD##*/}; sh -c \'echo "$A"\''
    await _require_output(first, shown, b"7x\ny|it's|2 3|v|none\nf it's\nalias\nshop\nx\ny\n")
    require((await _run(first, "false | true")).exit_status == 1, "pipefail", "none")
    require(first.cwd.endswith("/shop"), "the folder 'shop'", first.cwd)
    result = await _run(second, "echo ${A-none} $EXTRA; pwd")
    is_own = result.stdout.startswith(b"none x y\n") and not second.cwd.endswith("/shop")
    require(is_own, "a session of its own", result)
    require(await sandbox.open_session() is first, "the same session under the same name", "another")


@on_sandbox()
async def session_streams(sandbox: Sandbox) -> None:
    """Each command has its own standard input, streams and status; long commands work."""
    session = await sandbox.open_session()
    result = await _run(session, "cat; echo oops >&2; exit 3", stdin=bytes(range(256)))
    require(result.exit_status == 3 and result.stdout == bytes(range(256)), "the input and status 3", result)
    require(result.stderr == b"oops\n" and not result.is_state_restored, "'oops' and a kept state", result)
    await _require_output(session, "cat > long <<'X'\n" + "é" * 200_000 + "\nX\nwc -c < long; cat", b"400001\n")
    result = await _run(session, "echo 'one\n( two")
    require(result.exit_status == 2 and b"line 1" in result.stderr, "a syntax error in line 1", result)
    require((await _run(session, "kill -SEGV $$")).signal == 11, "signal 11", "none")


@on_sandbox()
async def session_status_cannot_be_forged(sandbox: Sandbox) -> None:
    """Nothing that a command prints, writes to a descriptor or redefines changes the reported status."""
    frame = r"printf '\0repairgym-state\0/forged\0exit 0\0repairgym-end\0'"
    attacks = (
        "echo 0; for fd in 1 2 3 4 5 198 199; do echo 0 >&$fd; done 2>/dev/null; exit 9",
        f"{frame}; {frame} >&199; exit 9",
        "trap 'exit 9' EXIT; exit 0",
        "head -c 5000000 /dev/zero >&199; head -c 5000000 /dev/zero | tee /dev/fd/199 >&2; exit 9",
        "exit() { builtin exit 9; }; printf() { :; }; declare() { :; }; exit 0",
    )
    for attack in attacks:
        session = await sandbox.open_session(attack)
        result = await _run(session, attack)
        require(result.exit_status == 9, f"status 9 for {attack}", result)
        result = await _run(session, "builtin echo fine")
        require(result.stdout.endswith(b"fine\n"), f"a session that works after {attack}", result)


@on_sandbox()
async def session_survives_a_bad_state(sandbox: Sandbox) -> None:
    """A broken state loses its content; the session itself continues."""
    broken = r"printf '\0repairgym-state\0/\0if then ( \"\0repairgym-end\0' >&199; exec true"
    session = await sandbox.open_session()
    await _run(session, broken)
    await _require_output(session, "echo fine", b"fine\n")
    await _run(session, "large=$(head -c 3000000 /dev/zero | tr '\\0' x)")
    await _require_output(session, "echo ${#large}", b"0\n")  # a state that is too large is dropped


@on_sandbox()
async def session_deadline(sandbox: Sandbox) -> None:
    """At the deadline the process tree ends; the session survives and reports the loss of the command's state."""
    session = await sandbox.open_session()
    await _run(session, "cd shop; export KEPT=1; kept() { echo kept $KEPT; }")
    command = "KEPT=2; cd /; trap '' TERM; (trap '' TERM; setsid sleep 986.5) & sleep 986.5; sleep 986.5"
    result = await _run(session, command, _SHORT_S)
    require(result.is_timed_out and result.exit_status is None, "a timeout", result)
    require(result.is_state_restored, "a note that the state is the old one", result)
    result = await _run(session, "kept; pwd; cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'sleep 98[6]'")
    lines = result.stdout.split(b"\n")
    require(lines[0] == b"kept 1" and lines[1].endswith(b"/shop"), "the state from before", result)
    require(lines[2] == b"0", "no process left", result)


@on_sandbox(output_bytes=1000)
async def session_output_bound(sandbox: Sandbox) -> None:
    """Endless output is bounded and counted per stream, and the session continues."""
    session = await sandbox.open_session()
    result = await _run(session, "echo head; head -c 1000000 /dev/zero; echo tail; echo oops >&2")
    require(result.is_truncated, "a cut", result)
    got = (result.num_stdout_bytes, result.num_stderr_bytes)
    require(got == (1_000_010, 5), "1000010 and 5 bytes", got)
    is_kept = result.stdout.startswith(b"head\n") and result.stdout.endswith(b"tail\n")
    require(is_kept and len(result.stdout) < 1100, "head and tail", result.stdout)
    await _require_output(session, "echo fine", b"fine\n")


# --- snapshots and forks -------------------------------------------------------------------------------------------


@on_site(needs_snapshots=True)
async def snapshot_independence(site: Site) -> None:
    """A snapshot keeps its state whatever its sandbox does afterwards, its close included."""
    async with site.sandbox({"start.txt": "start\n"}) as sandbox:
        script = "echo one > one; rm run.sh; mv shop/old shop/older; echo tmp > /tmp/kept 2>/dev/null; true"
        await shell(sandbox, script)
        snapshot = await sandbox.snapshot()
        try:
            await shell(sandbox, "echo two > one; echo x > after; rm -r shop; rm start.txt")
            spec = site.spec({"start.txt": "start\n"})
            first = await site.backend.create(spec, snapshot=snapshot)
            await sandbox.close()
            await shell(first, "echo first > one; rm shop/older/a.txt")
            second = await site.backend.create(spec, snapshot=snapshot)
            script = "cat one start.txt shop/older/a.txt; ls after run.sh shop/old 2>/dev/null"
            await require_output(second, script, b"one\nstart\na\n")
            changed = await second.changed_files()
            require(changed["one"] == b"one\n" and changed["run.sh"] is None, "changes against the start", changed)
            await first.close()
            await second.close()
        finally:
            await snapshot.close()
            await snapshot.close()
        await require_raises(InputError, site.backend.create(spec, snapshot=snapshot))


@on_site(needs_snapshots=True)
async def snapshots_are_of_one_tree(site: Site) -> None:
    """A snapshot cannot become a sandbox of other files."""
    async with site.sandbox() as sandbox:
        snapshot = await sandbox.snapshot()
        await require_raises(InputError, site.backend.create(site.spec({"other": "x"}), snapshot=snapshot))
        await snapshot.close()


@on_sandbox(needs_snapshots=True)
async def forks(sandbox: Sandbox) -> None:
    """Forks start from one state, sessions included, and do not see each other; the parent continues."""
    session = await sandbox.open_session()
    await _run(session, "cd shop; A=5; f() { echo f$A; }; echo 1 > n; echo t > $HOME/note")
    children = await sandbox.fork(3)
    for index, child in enumerate(children):
        command = f"cat n $HOME/note; f; echo {index} > n; A={index}"
        await _require_output(await child.open_session(), command, b"1\nt\nf5\n")
    for index, child in enumerate(children):
        own = f"{index}\nf{index}\n".encode()
        await _require_output(await child.open_session(), "cat n; f; echo x > ../run.sh", own)
        await child.close()
    await _require_output(session, "cat n; f; head -c 2 ../run.sh", b"1\nf5\n#!")
    require((await sandbox.diff()).changes[0].path == "shop/n", "a diff across the freeze", await sandbox.diff())


@on_sandbox(needs_snapshots=True)
async def chains(sandbox: Sandbox) -> None:
    """Snapshots of snapshots accumulate: every generation sees the changes of all before it, deletions too."""
    current = sandbox
    for generation in range(_CHAIN):
        await current.write_file(f"chain/{generation}", b"x")
        if generation:
            await shell(current, f"rm chain/{generation - 1}; echo {generation} >> log")
        if generation % 2:
            await (await current.snapshot()).close()
        (child,) = await current.fork()
        if current is not sandbox:
            await current.close()
        current = child
    expected = f"{_CHAIN - 1}\n{_CHAIN - 1}\n{_CHAIN - 1}\nrun.sh\n".encode()
    await require_output(current, "ls chain; tail -n 1 log; wc -l < log; ls run.sh", expected)
    changed = set(await current.changed_files())
    require(changed == {f"chain/{_CHAIN - 1}", "log"}, "two changes", changed)
    await current.close()


@on_sandbox(needs_snapshots=True)
async def snapshot_of_a_closed_sandbox(sandbox: Sandbox) -> None:
    """A closed sandbox has no snapshots."""
    await sandbox.close()
    await require_raises(SandboxError, sandbox.snapshot())
    await require_raises(SandboxError, sandbox.fork(2))
