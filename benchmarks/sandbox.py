"""What a sandbox costs: start, commands, sessions, forks, memory, a test suite; each beside a bare subprocess.

All runners take turns in one run, so that what else the machine does hits them alike: believe the ratios, not the
milliseconds. A runner is one entry of `RUNNERS`.

    python benchmarks/sandbox.py --quick --json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from mendwright.sandbox.base import SandboxBackend, SandboxLimits, SandboxSpec
from mendwright.sandbox.conformance import make_tree
from mendwright.sandbox.namespace import NamespaceBackend

_TIMEOUT_S = 300.0
_MS = 1000.0
Cycle = Callable[[], Awaitable[None]]
Results = dict[str, dict[str, float]]
"""measure -> runner -> milliseconds (or bytes, where the measure says so)"""


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    num_rounds: int = 40
    ways: tuple[int, ...] = (1, 2, 16)
    num_live: tuple[int, ...] = (200, 1000)
    num_tests: int = 2000
    num_generations: int = 60


QUICK = Plan(num_rounds=8, num_live=(50,), num_tests=200, num_generations=10)


@dataclass
class Place:
    """What the runners run in."""

    environment: Path
    tree: Path
    backend: SandboxBackend = field(default_factory=NamespaceBackend)

    @property
    def spec(self) -> SandboxSpec:
        """A sandbox of the tree."""
        return SandboxSpec(environment=self.environment, tree=self.tree)


async def bare(_: Place) -> None:
    """A process of `true` without walls."""
    process = await asyncio.create_subprocess_exec("true")
    await process.wait()


async def namespace(place: Place) -> None:
    """A sandbox, `true` in it, and its end as far as the caller waits for it."""
    sandbox = await place.backend.create(place.spec)
    result = await sandbox.exec(("true",), timeout_s=_TIMEOUT_S)
    assert result.exit_status == 0, result
    await sandbox.close()


RUNNERS: dict[str, Callable[[Place], Awaitable[None]]] = {"bare": bare, "namespace": namespace}


async def timed(call: Awaitable[object]) -> float:
    """Milliseconds that ``call`` takes."""
    start = time.perf_counter()
    await call
    return (time.perf_counter() - start) * _MS


async def measure_starts(place: Place, plan: Plan) -> Results:
    """Start + `true` + teardown, per cycle, at several degrees of concurrency."""
    results: Results = {}
    for ways in plan.ways:
        times: dict[str, list[float]] = {name: [] for name in RUNNERS}
        for _ in range(max(plan.num_rounds // ways, 3)):
            for name, run in RUNNERS.items():
                times[name] += await asyncio.gather(*(timed(run(place)) for _ in range(ways)))
        results[f"start + true + teardown, {ways} at once"] = {
            name: statistics.median(values) for name, values in times.items()
        }
    return results


async def measure_commands(place: Place, plan: Plan) -> Results:
    """Round trips into a live sandbox."""
    sandbox = await place.backend.create(place.spec)
    session = await sandbox.open_session()
    await session.run(":", timeout_s=_TIMEOUT_S)
    calls: dict[str, tuple[str, Cycle]] = {
        "bare": ("exec", lambda: bare(place)),
        "namespace": ("exec", lambda: _ignore(sandbox.exec(("true",), timeout_s=_TIMEOUT_S))),
        "session": ("session", lambda: _ignore(session.run(":", timeout_s=_TIMEOUT_S))),
        "snapshot": ("snapshot", lambda: _snapshot(sandbox)),
        "fork": ("fork", lambda: _fork(sandbox)),
    }
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(plan.num_rounds):
        for name, (_, call) in calls.items():
            times[name].append(await timed(call()))
    await sandbox.close()
    medians = {name: statistics.median(values) for name, values in times.items()}
    return {
        "exec of `true`": {"bare": medians["bare"], "namespace": medians["namespace"]},
        "session command `:`": {"bare": medians["bare"], "namespace": medians["session"]},
        "snapshot": {"namespace": medians["snapshot"]},
        "fork of one child": {"namespace": medians["fork"]},
    }


async def _ignore(call: Awaitable[object]) -> None:
    await call


async def _snapshot(sandbox: object) -> None:
    await (await sandbox.snapshot()).close()  # type: ignore[attr-defined]


async def _fork(sandbox: object) -> None:
    for child in await sandbox.fork(1):  # type: ignore[attr-defined]
        await child.close()


async def measure_chain(place: Place, plan: Plan) -> Results:
    """Reading the tree at the end of a chain of forks, against a fresh sandbox."""
    script = ("sh", "-c", "find . -type f | xargs cat > /dev/null")
    fresh = current = await place.backend.create(place.spec)
    for generation in range(plan.num_generations):
        (child,) = await current.fork()
        await child.write_file(f"chain/{generation}", b"x")
        if current is not fresh:
            await current.close()
        current = child
    times: dict[str, list[float]] = {"fresh": [], "forked": []}
    for _ in range(plan.num_rounds):
        for name, sandbox in (("fresh", fresh), ("forked", current)):
            times[name].append(await timed(sandbox.exec(script, timeout_s=_TIMEOUT_S)))
    await fresh.close()
    await current.close()
    medians = {name: statistics.median(values) for name, values in times.items()}
    return {
        f"read of the tree after {plan.num_generations} forks (bare: before)": {
            "bare": medians["fresh"],
            "namespace": medians["forked"],
        }
    }


def _memory_bytes() -> tuple[int, int]:
    """Memory in use on the machine, and proportional share of our processes."""
    memory = psutil.virtual_memory()
    shares = 0
    for process in psutil.Process().children(recursive=True):
        try:
            shares += process.memory_full_info().pss
        except psutil.Error:
            continue
    return memory.total - memory.available, shares


async def measure_live(place: Place, plan: Plan) -> Results:
    """Many live sandboxes: time and memory of each."""
    results: Results = {}
    for num_live in plan.num_live:
        async with AsyncExitStack() as stack:
            before = _memory_bytes()
            start = time.perf_counter()
            for _ in range(num_live):
                sandbox = await place.backend.create(place.spec)
                stack.push_async_callback(sandbox.close)
            each_ms = (time.perf_counter() - start) * _MS / num_live
            used, shares = (after - first for after, first in zip(_memory_bytes(), before, strict=True))
            results[f"start of {num_live} that stay, each"] = {"namespace": each_ms}
            results[f"memory of {num_live} live ones, bytes each"] = {"namespace": used / num_live}
            results[f"of it processes ({num_live} live), bytes each"] = {"namespace": shares / num_live}
    return results


_SUITE = """
import json, os, subprocess, tempfile
import pytest

@pytest.mark.parametrize("number", range({num_tests}))
def test_work(number, tmp_path):
    data = {{str(i): list(range(20)) for i in range(200)}}
    (tmp_path / "x").write_text(json.dumps(data))
    assert json.loads((tmp_path / "x").read_text()) == data
    if number % 50 == 0:
        assert subprocess.run(["true"]).returncode == 0
"""


async def measure_suite(place: Place, plan: Plan) -> Results:
    """A suite of small tests with files and processes, inside and outside."""
    argv = ("python", "-m", "pytest", "-q", "-c", "/dev/null", "-p", "no:cacheprovider", "test_suite.py")
    times: dict[str, list[float]] = {"bare": [], "namespace": []}
    text = _SUITE.format(num_tests=plan.num_tests)
    with tempfile.TemporaryDirectory(prefix="mend-bench-") as folder:
        Path(folder, "test_suite.py").write_text(text)
        limits = SandboxLimits(disk_bytes=1 << 30)
        spec = SandboxSpec(environment=Path(sys.prefix), tree=place.tree, files={"test_suite.py": text}, limits=limits)
        for _ in range(3):
            process = await asyncio.create_subprocess_exec(
                sys.executable, *argv[1:], cwd=folder, stdout=asyncio.subprocess.DEVNULL
            )
            times["bare"].append(await timed(process.wait()))
            sandbox = await place.backend.create(spec)
            start = time.perf_counter()
            result = await sandbox.exec(argv, timeout_s=_TIMEOUT_S)
            times["namespace"].append((time.perf_counter() - start) * _MS)
            assert result.exit_status == 0, result
            await sandbox.close()
    return {f"suite of {plan.num_tests} tests": {name: statistics.median(values) for name, values in times.items()}}


MEASURES = {
    "starts": measure_starts,
    "commands": measure_commands,
    "chain": measure_chain,
    "live": measure_live,
    "suite": measure_suite,
}


@asynccontextmanager
async def make_place() -> AsyncIterator[Place]:
    """An environment that has an interpreter and nothing else, and the tree of the conformance checks."""
    with tempfile.TemporaryDirectory(prefix="mend-bench-") as folder:
        interpreter = Path(sys.executable).resolve()
        environment = Path(folder, "environment")
        (environment / "bin").mkdir(parents=True)
        (environment / "bin" / "python").symlink_to(interpreter)
        (environment / "pyvenv.cfg").write_text(f"home = {interpreter.parent}\ninclude-system-site-packages = false\n")
        place = Place(environment, make_tree(Path(folder, "tree")))
        try:
            yield place
        finally:
            await place.backend.close()


async def measure(plan: Plan, names: list[str]) -> Results:
    """All measures of ``names``."""
    results: Results = {}
    async with make_place() as place:
        await namespace(place)
        for name in names:
            results |= await MEASURES[name](place, plan)
    return results


def show(results: Results) -> str:
    """A Markdown table with ratios to the bare process."""
    lines = ["| measure | bare | namespace | ratio |", "|---|---:|---:|---:|"]
    for what, values in results.items():
        unit = "" if "bytes" in what else " ms"
        cells = [f"{values[name]:.1f}{unit}" if name in values else "" for name in RUNNERS]
        ratio = f"{values['namespace'] / values['bare']:.2f}" if "bare" in values else ""
        lines.append(f"| {what} | {' | '.join(cells)} | {ratio} |")
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="under a minute")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--only", nargs="*", choices=sorted(MEASURES), default=list(MEASURES), help="which measures")
    arguments = parser.parse_args()
    results = asyncio.run(measure(QUICK if arguments.quick else Plan(), arguments.only))
    print(json.dumps(results, indent=2) if arguments.json else show(results))


if __name__ == "__main__":
    main()
