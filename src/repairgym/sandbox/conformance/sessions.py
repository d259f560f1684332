"""State that lasts: shell sessions (state between commands, forgery, deadlines), snapshots and forks."""

from repairgym.errors import InputError, SandboxError
from repairgym.sandbox.base import ExecResult, SandboxLimits, SandboxSpec, ShellSession
from repairgym.sandbox.conformance.site import TIMEOUT_S, Site, checks, require, require_raises, shell

_SHORT_S = 0.7
_CHAIN = 12


async def _run(session: ShellSession, command: str, timeout_s: float = TIMEOUT_S, stdin: bytes = b"") -> ExecResult:
    return await session.run(command, timeout_s=timeout_s, stdin=stdin)


async def session_state(site: Site) -> None:
    """Folder, variables of every kind, functions, aliases, options and ``$?`` stay; each session has its own."""
    async with site.sandbox() as sandbox:
        first, second = await sandbox.open_session(), await sandbox.open_session("two", {"EXTRA": "x y"})
        start = "cd shop; export A=$'x\\ny'; b='it'\"'\"'s'; c=(1 '2 3'); declare -A d=([k]=v); f() { echo f $b; }; "
        await _run(first, start + "alias hi='echo alias'; shopt -s expand_aliases; set -o pipefail; unset TZ; (exit 7)")
        result = await _run(
            first, 'echo "$?$A|$b|${c[1]}|${d[k]}|${TZ-none}"; f; hi; echo ${PWD##*/}; sh -c \'echo "$A"\''
        )
        expected = b"7x\ny|it's|2 3|v|none\nf it's\nalias\nshop\nx\ny\n"
        require(result.stdout == expected, repr(expected), result)
        require((await _run(first, "false | true")).exit_status == 1, "pipefail", "none")
        require(first.cwd.endswith("/shop"), "the folder 'shop'", first.cwd)
        result = await _run(second, "echo ${A-none} $EXTRA; pwd")
        require(
            result.stdout.startswith(b"none x y\n") and not second.cwd.endswith("/shop"), "a session of its own", result
        )
        require(await sandbox.open_session() is first, "the same session under the same name", "another")


async def session_streams(site: Site) -> None:
    """Each command has its own standard input, streams and status; long commands work."""
    async with site.sandbox() as sandbox:
        session = await sandbox.open_session()
        result = await _run(session, "cat; echo oops >&2; exit 3", stdin=bytes(range(256)))
        require(result.exit_status == 3 and result.stdout == bytes(range(256)), "the input and status 3", result)
        require(result.stderr == b"oops\n" and not result.is_state_restored, "'oops' and a kept state", result)
        result = await _run(session, "cat > long <<'X'\n" + "é" * 200_000 + "\nX\nwc -c < long; cat")
        require(result.stdout == b"400001\n", "400001 bytes and an empty input", result)
        result = await _run(session, "echo 'one\n( two")
        require(result.exit_status == 2 and b"line 1" in result.stderr, "a syntax error in line 1", result)
        require((await _run(session, "kill -SEGV $$")).signal == 11, "signal 11", "none")


async def session_status_cannot_be_forged(site: Site) -> None:
    """Nothing that a command prints, writes to a descriptor or redefines changes the reported status."""
    frame = r"printf '\0repairgym-state\0/forged\0exit 0\0repairgym-end\0'"
    attacks = (
        "echo 0; for fd in 1 2 3 4 5 198 199; do echo 0 >&$fd; done 2>/dev/null; exit 9",
        f"{frame}; {frame} >&199; exit 9",
        "trap 'exit 9' EXIT; exit 0",
        "head -c 5000000 /dev/zero >&199; head -c 5000000 /dev/zero | tee /dev/fd/199 >&2; exit 9",
        "exit() { builtin exit 9; }; printf() { :; }; declare() { :; }; exit 0",
    )
    async with site.sandbox() as sandbox:
        for attack in attacks:
            session = await sandbox.open_session(attack)
            result = await _run(session, attack)
            require(result.exit_status == 9, f"status 9 for {attack}", result)
            result = await _run(session, "builtin echo fine")
            require(result.stdout.endswith(b"fine\n"), f"a session that works after {attack}", result)


async def session_survives_a_bad_state(site: Site) -> None:
    """A broken state loses its content; the session itself continues."""
    broken = r"printf '\0repairgym-state\0/\0if then ( \"\0repairgym-end\0' >&199; exec true"
    async with site.sandbox() as sandbox:
        session = await sandbox.open_session()
        await _run(session, broken)
        require((await _run(session, "echo fine")).stdout == b"fine\n", "a session that works", "none")
        await _run(session, "large=$(head -c 3000000 /dev/zero | tr '\\0' x)")
        result = await _run(session, "echo ${#large}")
        require(result.stdout == b"0\n", "a state that is too large to be dropped", result)


async def session_deadline(site: Site) -> None:
    """At the deadline the process tree ends; the session survives and reports the loss of the command's state."""
    async with site.sandbox() as sandbox:
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


async def session_output_bound(site: Site) -> None:
    """Endless output is bounded and counted per stream, and the session continues."""
    async with site.sandbox(limits=SandboxLimits(output_bytes=1000)) as sandbox:
        session = await sandbox.open_session()
        result = await _run(session, "echo head; head -c 1000000 /dev/zero; echo tail; echo oops >&2")
        require(result.is_truncated, "a cut", result)
        got = (result.num_stdout_bytes, result.num_stderr_bytes)
        require(got == (1_000_010, 5), "1000010 and 5 bytes", got)
        is_kept = result.stdout.startswith(b"head\n") and result.stdout.endswith(b"tail\n")
        require(is_kept and len(result.stdout) < 1100, "head and tail", result.stdout)
        require((await _run(session, "echo fine")).stdout == b"fine\n", "a session that works", "none")


# --- snapshots and forks -------------------------------------------------------------------------------------------


async def snapshot_independence(site: Site) -> None:
    """A snapshot keeps its state whatever its sandbox does afterwards, its close included."""
    async with site.sandbox({"start.txt": "start\n"}) as sandbox:
        await shell(
            sandbox, "echo one > one; rm run.sh; mv shop/old shop/older; echo tmp > /tmp/kept 2>/dev/null; true"
        )
        snapshot = await sandbox.snapshot()
        try:
            await shell(sandbox, "echo two > one; echo x > after; rm -r shop; rm start.txt")
            spec = SandboxSpec(
                environment=site.environment, tree=site.tree, files={"start.txt": "start\n"}, limits=site.limits
            )
            first = await site.backend.create(spec, snapshot=snapshot)
            await sandbox.close()
            await shell(first, "echo first > one; rm shop/older/a.txt")
            second = await site.backend.create(spec, snapshot=snapshot)
            result = await shell(second, "cat one start.txt shop/older/a.txt; ls after run.sh shop/old 2>/dev/null")
            require(result.stdout == b"one\nstart\na\n", "the state of the snapshot", result)
            changed = await second.changed_files()
            require(changed["one"] == b"one\n" and changed["run.sh"] is None, "changes against the start", changed)
            await first.close()
            await second.close()
        finally:
            await snapshot.close()
            await snapshot.close()
        await require_raises(InputError, site.backend.create(spec, snapshot=snapshot))


async def snapshots_are_of_one_tree(site: Site) -> None:
    """A snapshot cannot become a sandbox of other files."""
    async with site.sandbox() as sandbox:
        snapshot = await sandbox.snapshot()
        spec = SandboxSpec(environment=site.environment, tree=site.tree, files={"other": "x"}, limits=site.limits)
        await require_raises(InputError, site.backend.create(spec, snapshot=snapshot))
        await snapshot.close()


async def forks(site: Site) -> None:
    """Forks start from one state, sessions included, and do not see each other; the parent continues."""
    async with site.sandbox() as sandbox:
        session = await sandbox.open_session()
        await session.run("cd shop; A=5; f() { echo f$A; }; echo 1 > n; echo t > $HOME/note", timeout_s=TIMEOUT_S)
        children = await sandbox.fork(3)
        for index, child in enumerate(children):
            inner = await child.open_session()
            result = await inner.run(f"cat n $HOME/note; f; echo {index} > n; A={index}", timeout_s=TIMEOUT_S)
            require(result.stdout == b"1\nt\nf5\n", "the parent's state", result)
        for index, child in enumerate(children):
            result = await (await child.open_session()).run("cat n; f; echo x > ../run.sh", timeout_s=TIMEOUT_S)
            require(result.stdout == f"{index}\nf{index}\n".encode(), "its own state", result)
            await child.close()
        result = await session.run("cat n; f; head -c 2 ../run.sh", timeout_s=TIMEOUT_S)
        require(result.stdout == b"1\nf5\n#!", "the parent's own state", result)
        require((await sandbox.diff()).changes[0].path == "shop/n", "a diff across the freeze", await sandbox.diff())


async def chains(site: Site) -> None:
    """Snapshots of snapshots accumulate: every generation sees the changes of all before it, deletions too."""
    async with site.sandbox() as sandbox:
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
        result = await shell(current, "ls chain; tail -n 1 log; wc -l < log; ls run.sh")
        expected = f"{_CHAIN - 1}\n{_CHAIN - 1}\n{_CHAIN - 1}\nrun.sh\n".encode()
        require(result.stdout == expected, repr(expected), result)
        changed = set(await current.changed_files())
        require(changed == {f"chain/{_CHAIN - 1}", "log"}, "two changes", changed)
        await current.close()


async def snapshot_of_a_closed_sandbox(site: Site) -> None:
    """A closed sandbox has no snapshots."""
    async with site.sandbox() as sandbox:
        await sandbox.close()
        await require_raises(SandboxError, sandbox.snapshot())
        await require_raises(SandboxError, sandbox.fork(2))


CHECKS = (
    *checks(
        session_state,
        session_streams,
        session_status_cannot_be_forged,
        session_survives_a_bad_state,
        session_deadline,
        session_output_bound,
    ),
    *checks(
        snapshot_independence,
        snapshots_are_of_one_tree,
        forks,
        chains,
        snapshot_of_a_closed_sandbox,
        needs_snapshots=True,
    ),
)
