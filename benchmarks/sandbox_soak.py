"""Thousands of create/exec/destroy cycles with random kills: nothing may grow.

Each cycle makes a sandbox and does one of: a command, a command that is cancelled, a fork, a session, a kill of a
trusted process, a zygote, the spawner or a command; every so often a whole host process with live sandboxes is killed.
Afterwards processes, mounts, control groups, descriptors and files are what they were.

    python benchmarks/sandbox_soak.py --cycles 20000
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from repairgym.errors import SandboxError
from repairgym.sandbox.backends.cgroups import find_mounts
from repairgym.sandbox.backends.namespace import NamespaceBackend
from repairgym.sandbox.base import ExecResult, Sandbox, SandboxSpec
from repairgym.sandbox.conformance import make_environment, make_tree

_MARK = "REPAIRGYM_SOAK"
_NAP = f"907.{os.getpid()}{time.time_ns() % 10**6}"
"""Seconds that commands sleep: a number that nobody else uses."""
_hosts = {os.getpid()}
"""Processes that made sandboxes for this run: their control groups carry these numbers."""
_TIMEOUT_S = 60.0
_SETTLE_S = 60.0


@dataclass(frozen=True)
class Count:
    """What must not grow."""

    num_processes: int
    num_mounts: int
    num_groups: int
    num_descriptors: int
    num_files: int

    def exceeds(self, other: Count) -> bool:
        """Whether anything is more than in ``other``."""
        return any(getattr(self, name) > getattr(other, name) for name in self.__dataclass_fields__)


def _processes() -> int:
    """Processes that come from this run, whoever their parent is now: by an inherited mark, or by what they run."""
    found = 0
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            is_marked = process.pid != os.getpid() and process.environ().get(_MARK) == _NAP
            found += is_marked or _NAP in process.cmdline()
    return found


def count(folder: Path) -> Count:
    """What there is now."""
    groups = 0
    for mount in find_mounts(Path("/proc/self/mountinfo").read_text(), Path("/proc/self/cgroup").read_text()):
        with contextlib.suppress(OSError):
            ours = [path for path in mount.own.glob("repairgym-*") if any(f":{pid}:" in path.name for pid in _hosts)]
            groups += sum(1 + len(list(path.glob("*/"))) for path in ours)
    return Count(
        num_processes=_processes(),
        num_mounts=len(Path("/proc/self/mountinfo").read_text().splitlines()),
        num_groups=groups,
        num_descriptors=len(os.listdir("/proc/self/fd")),
        num_files=sum(1 for _ in folder.rglob("*")),
    )


def _was_hit(result: ExecResult) -> bool:
    """Whether a random kill may have hit the command itself, and not what runs it."""
    return result.signal == signal.SIGKILL


async def _command(sandbox: Sandbox) -> None:
    result = await sandbox.exec(("sh", "-c", f"echo x > y; setsid sleep {_NAP} & echo done"), timeout_s=_TIMEOUT_S)
    assert result.stdout == b"done\n" or _was_hit(result), result


async def _cancelled(sandbox: Sandbox) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(sandbox.exec(("sleep", _NAP), timeout_s=_TIMEOUT_S), 0.02)


async def _deadline(sandbox: Sandbox) -> None:
    result = await sandbox.exec(("sh", "-c", f"trap '' TERM; sleep {_NAP}; sleep {_NAP}"), timeout_s=0.05)
    assert result.is_timed_out or _was_hit(result), result


async def _fork(sandbox: Sandbox) -> None:
    await sandbox.write_file("x", b"x")
    for child in await sandbox.fork(2):
        assert await child.read_file("x") == b"x"
        await child.close()


async def _session(sandbox: Sandbox) -> None:
    session = await sandbox.open_session()
    first = await session.run("cd shop; A=1", timeout_s=_TIMEOUT_S)
    second = await session.run("echo $A", timeout_s=_TIMEOUT_S)
    assert second.stdout == b"1\n" or _was_hit(first) or _was_hit(second), (first, second)


async def _kill(_: Sandbox) -> None:
    """End one process at random: spawner, zygote, trusted process, or a command that some other cycle runs."""
    with contextlib.suppress(psutil.Error, IndexError):
        random.choice(psutil.Process().children(recursive=True)).kill()


ACTIONS: tuple[tuple[Callable[[Sandbox], object], int], ...] = (
    (_command, 60),
    (_cancelled, 8),
    (_deadline, 4),
    (_fork, 10),
    (_session, 10),
    (_kill, 8),
)


async def _cycle(backend: NamespaceBackend, spec: SandboxSpec, generator: random.Random) -> None:
    actions, weights = zip(*ACTIONS, strict=True)
    with contextlib.suppress(SandboxError):
        sandbox = await backend.create(spec)
        try:
            await generator.choices(actions, weights)[0](sandbox)  # type: ignore[misc]
        finally:
            await sandbox.close()


_HOST = """
import asyncio, sys
from pathlib import Path
from repairgym.sandbox.base import SandboxSpec
from repairgym.sandbox.backends.namespace import NamespaceBackend
async def main():
    backend = NamespaceBackend()
    spec = SandboxSpec(environment=Path(sys.argv[1]), tree=Path(sys.argv[2]))
    sandboxes = [await backend.create(spec) for _ in range(3)]
    sandboxes += await sandboxes[0].fork(2)
    script = f"trap '' TERM; setsid sleep {sys.argv[3]} & sleep {sys.argv[3]}"
    calls = [sandbox.exec(("sh", "-c", script), timeout_s=600) for sandbox in sandboxes]
    print("ready", flush=True)
    await asyncio.gather(*calls)
asyncio.run(main())
"""


def kill_a_host(spec: SandboxSpec, generator: random.Random) -> None:
    """Start a host with live sandboxes in a process of its own and kill it, sometimes with its spawner."""
    arguments = [sys.executable, "-c", _HOST, str(spec.environment), str(spec.tree), _NAP]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE) as host:
        _hosts.add(host.pid)
        assert host.stdout is not None
        assert host.stdout.readline() == b"ready\n"
        time.sleep(generator.random() * 0.1)
        spawners = psutil.Process(host.pid).children()
        if generator.random() < 0.3:
            for spawner in spawners:
                spawner.kill()
        host.send_signal(signal.SIGKILL)


async def soak(num_cycles: int, ways: int, seed: int, report_every: int = 1000) -> tuple[Count, Count]:
    """Counts before and after ``num_cycles``."""
    generator = random.Random(seed)
    os.environ[_MARK] = _NAP
    with tempfile.TemporaryDirectory(prefix="repairgym-soak-") as folder:
        environment = make_environment(Path(folder, "environment"))
        spec = SandboxSpec(environment=environment, tree=make_tree(Path(folder, "tree")))
        backend = NamespaceBackend()
        await _cycle(backend, spec, generator)
        await backend.close()
        before = count(Path(folder))
        done, started = 0, time.monotonic()
        while done < num_cycles:
            await asyncio.gather(*(_cycle(backend, spec, generator) for _ in range(ways)))
            done += ways
            if done % 500 < ways or done >= num_cycles:
                await asyncio.to_thread(kill_a_host, spec, generator)
            if done % report_every < ways:
                left_s = (time.monotonic() - started) / done * max(num_cycles - done, 0)
                print(f"{done} cycles, {left_s:.0f} s left: {count(Path(folder))}", file=sys.stderr, flush=True)
        await backend.close()
        # What killed hosts with killed spawners left goes at the next start.
        await (await backend.create(spec)).close()
        await backend.close()
        return before, await _settled(before, Path(folder))


async def _settled(before: Count, folder: Path) -> Count:
    """What there is once the kernel has cleared up, or after a minute."""
    after = count(folder)
    deadline = time.monotonic() + _SETTLE_S
    while after.exceeds(before) and time.monotonic() < deadline:
        await asyncio.sleep(0.5)
        after = count(folder)
    return after


def show(num_cycles: int, before: Count, after: Count) -> str:
    """A Markdown table."""
    lines = [f"| after {num_cycles} cycles | before | after |", "|---|---:|---:|"]
    for name, value in asdict(before).items():
        lines.append(f"| {name.removeprefix('num_')} | {value} | {asdict(after)[name]} |")
    return "\n".join(lines)


def main() -> None:
    """Soak and print; the exit status is 1 when something grew."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=20_000)
    parser.add_argument("--quick", action="store_true", help="200 cycles, under a minute on an idle machine")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--ways", type=int, default=4, help="sandboxes at once")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    num_cycles = 200 if arguments.quick else arguments.cycles
    before, after = asyncio.run(soak(num_cycles, arguments.ways, arguments.seed))
    if arguments.json:
        print(json.dumps({"num_cycles": num_cycles, "before": asdict(before), "after": asdict(after)}, indent=2))
    else:
        print(show(num_cycles, before, after))
    sys.exit(after.exceeds(before))


if __name__ == "__main__":
    main()
