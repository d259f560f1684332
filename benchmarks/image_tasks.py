"""Tasks in container images beside the loop of mini-swe-agent over podman: pulls, disk, starts, episodes, memory.

Makes sibling images from programs of this machine and files of noise (1.5 GB in 20 layers, 10 siblings; --quick: 0.2 GB
in 8, 3 siblings), serves them from a registry in this process, and builds a certified task of each. Then, taking turns
in one run: starts of a sandbox and `podman run`; episodes of the same scripted commands in sandboxes and in containers
that are started, entered and removed as mini-swe-agent does it (with --mini-swe-agent PYTHON by mini-swe-agent itself,
installed for that interpreter); at last many live episodes at once. No public image is used: none can be pulled where
no registry is reachable. Processor time is told with and without that of the commands themselves (`own_cpu_s`); that of
podman is its command lines', without monitors, which favors podman. Believe ratios, and where others use the machine,
processor time.

    python benchmarks/image_tasks.py --quick --json
    python benchmarks/image_tasks.py
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
from images import fill, import_into_podman, podman_run

from repairgym.config.sandbox import LayersConfig
from repairgym.config.tasks import ImportedConfig
from repairgym.diffs.make import unified_diff
from repairgym.records import Task
from repairgym.sandbox.backends.namespace import NamespaceBackend
from repairgym.sandbox.base import ImageRoot, Sandbox
from repairgym.sandbox.conformance.host_image import ENVIRONMENT, make_image
from repairgym.tasks.build.validation import TaskLayers, task_layers
from repairgym.tasks.imported.build_imported import ImportedBuilder
from repairgym.tasks.layers.images.manifests import this_platform
from repairgym.tasks.layers.images.pull import pull
from repairgym.tasks.layers.store import LayerStore
from repairgym.tasks.store import TaskStore
from repairgym.tasks.unbuilt import UnbuiltTask
from repairgym.testing.environments import copy_environment
from repairgym.testing.image_archives import Layer, entry, layer
from repairgym.testing.registry import FakeRegistry

_MS, _MB = 1000.0, 1e6
_CODE, _TEST = "calc.py", "tests/test_calc.py"
_BROKEN = "def double(x):\n    return x * 3\n"
_TESTS = "import calc\n\n\ndef test_double():\n    assert calc.double(2) == 4\n\n\ndef test_zero():\n    assert True\n"
_IMAGE = "localhost/repairgym-benchmark-image"
_PYTHON = f"{ENVIRONMENT}/bin/python"
COMMANDS = (
    "ls", f"cat {_CODE}", "grep -rn double . | head", f"{_PYTHON} -c 'import calc; print(calc.double(2))'",
    f"sed -i 's/x \\* 3/x * 2/' {_CODE}", f"{_PYTHON} -c 'import calc; print(calc.double(2))'",
    f"{_PYTHON} -m pytest -q -p no:cacheprovider tests", f"cat {_CODE} | head -20", "find . -name '*.py' | wc -l",
    "rm -rf __pycache__ tests/__pycache__",
)  # fmt: skip
"""One episode."""
_MINI = """
import json, sys, time, resource
from minisweagent.agents.default import DefaultAgent
from minisweagent.environments.docker import DockerEnvironment
from minisweagent.models.test_models import DeterministicModel, make_output
image, commands, num = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
texts = dict(system_template="", instance_template="", step_limit=0, cost_limit=0)
done = {"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"}
outputs = [make_output("", [{"command": c}]) for c in commands] + [make_output("", [done])]
times = []
for _ in range(num):
    begin = time.perf_counter()
    bounds = ["--runtime", sys.argv[4]] if sys.argv[4] else []
    bounds += ["--rm", "--network", "none", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096"]
    environment = DockerEnvironment(image=image, cwd="/testbed", executable="podman", run_args=bounds)
    DefaultAgent(DeterministicModel(outputs=outputs), environment, **texts).run("")
    environment.cleanup()
    times.append(time.perf_counter() - begin)
usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
print(json.dumps({"times": times, "cpu_s": sum(u.ru_utime + u.ru_stime for u in usage[1:])}))
"""
"""Its own process and imports are not counted, only the commands that it starts."""


@dataclass
class Instances:
    """Sibling images, built as tasks."""

    root: ImageRoot
    """The first image as it was made, before it was packed."""
    tasks: list[Task]
    layers: list[TaskLayers]
    figures: dict[str, Any]


def cpu_s() -> float:
    """Return the processor time of this process and of the children that it waited for."""
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(part.ru_utime + part.ru_stime for part in usage)


def pack(folder: Path) -> Layer:
    """Return a layer of the files in ``folder``, not compressed."""
    made = subprocess.run(["tar", "-C", str(folder), "-c", "."], check=True, capture_output=True).stdout
    return made, made


def own_layer(number: int) -> Layer:
    """Return the layer that only the image ``number`` has: its repository."""
    files = {f"testbed/{_CODE}": f"{_BROKEN}NUMBER = {number}\n", f"testbed/{_TEST}": _TESTS.split("\n\n\n")[0]}
    entries = [entry(path, text.encode()) for path, text in files.items()]
    return layer(*entries, entry("testbed/noise", os.urandom(1 << 20)))


def record(number: int) -> UnbuiltTask:
    """Return the record of the image ``number``."""
    before = {_CODE: f"{_BROKEN}NUMBER = {number}\n", _TEST: _TESTS.split("\n\n\n")[0]}
    return UnbuiltTask(
        id=f"acme__calc-{number}",
        format="swe_bench_5",
        repository="acme/calc",
        issue="double(2) is 6",
        gold_patch=unified_diff({_CODE: before[_CODE]}, {_CODE: before[_CODE].replace("* 3", "* 2")}),
        test_patch=unified_diff({_TEST: before[_TEST]}, {_TEST: _TESTS}),
        fail_to_pass=(f"{_TEST}::test_double",),
        pass_to_pass=(f"{_TEST}::test_zero",),
        image=f"team/calc-{number}",
    )


def make_instances(folder: Path, num_bytes: int, num_layers: int, num_instances: int) -> Instances:
    """Make, pull and certify the tasks."""
    base = make_image(folder / "image", copy_environment(folder / "packages"))
    root = fill(base, folder / "noise", num_bytes, num_layers - 1)
    shared = [pack(layer) for layer in root.layers]
    records = [record(number) for number in range(num_instances)]
    registry = FakeRegistry()
    for number, unbuilt in enumerate(records):
        environment = [f"VIRTUAL_ENV={ENVIRONMENT}", "LANG=C.UTF-8"]
        fields = {"config": {"Env": environment}, "architecture": this_platform().partition("/")[2]}
        registry.add(unbuilt.image, "latest", [*shared, own_layer(number)], **fields)
    store = LayerStore(folder / "store", config=LayersConfig())
    pulls = []
    with registry.in_thread() as url:
        host = urlsplit(url).netloc
        for unbuilt in records:
            begin = time.perf_counter()
            done = pull(store, f"{host}/{unbuilt.image}")
            pulls.append((done.num_bytes_moved / _MB, time.perf_counter() - begin))
        TaskStore(folder / "tasks").save_unbuilt(records)
        config = ImportedConfig(images=f"{host}/{{image}}", num_workers=1, num_certificate_runs=1)
        begin = time.perf_counter()
        outcomes = asyncio.run(ImportedBuilder(folder / "tasks", config, store).build())
        build_s = time.perf_counter() - begin
    if missed := [done.reason for done in outcomes if done.task is None]:
        raise SystemExit(f"{len(missed)} of {num_instances} instances were not certified: {missed[0]}")
    tasks = [done.task for done in outcomes if done.task]
    stored = sum({(s.st_dev, s.st_ino): s.st_blocks * 512 for p in store.root.rglob("*") for s in [p.lstat()]}.values())
    figures = {
        "image_mb": sum(len(blob) for blob, _ in shared) / _MB,
        "first_pull_mb": pulls[0][0],
        "first_pull_s": pulls[0][1],
        "sibling_pull_mb": statistics.median(mb for mb, _ in pulls[1:]),
        "sibling_pull_s": statistics.median(s for _, s in pulls[1:]),
        "build_s_per_task": build_s / num_instances,
        "stored_mb_per_instance": stored / _MB / num_instances,
        "own_mb_per_instance": (stored / _MB - pulls[0][0]) / num_instances,
    }
    own = folder / "own"
    (own / "testbed" / "tests").mkdir(parents=True)
    (own / "testbed" / _CODE).write_text(_BROKEN)
    (own / "testbed" / _TEST).write_text(_TESTS)
    whole = ImageRoot(layers=(*root.layers, own), variables=root.variables)
    return Instances(whole, tasks, [task_layers(task, store) for task in tasks], figures)


# --- starts ----------------------------------------------------------------------------------------------------------


async def measure_starts(layers: TaskLayers, num_rounds: int, podman: Callable[[], None] | None) -> dict[str, Any]:
    """Return milliseconds of warm starts, and of `podman run`, in turns."""
    backend, times = NamespaceBackend(), dict[str, list[float]]()

    def note(name: str, begin: float) -> None:
        times.setdefault(name, []).append((time.perf_counter() - begin) * _MS)

    try:
        await (await backend.create(layers.spec({}))).close()
        for _ in range(num_rounds):
            begin = time.perf_counter()
            sandbox = await backend.create(layers.spec({}))
            note("start_ms", begin)
            await sandbox.exec(("true",), timeout_s=60)
            await sandbox.close()
            note("start_true_end_ms", begin)
            if podman is not None:
                begin = time.perf_counter()
                await asyncio.to_thread(podman)
                note("podman_run_true_ms", begin)
            await asyncio.sleep(0.02)
    finally:
        await backend.close()
    return {name: {"median": statistics.median(all_ms), "fastest": min(all_ms)} for name, all_ms in times.items()}


# --- episodes --------------------------------------------------------------------------------------------------------


def living_cpu_s(known: dict[int, float]) -> None:
    """Note the processor time of each process below this one: those of sandboxes are not waited for here."""
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            spent = process.cpu_times()
            known[process.pid] = max(known.get(process.pid, 0.0), spent.user + spent.system)


async def episode(backend: NamespaceBackend, task: Task, layers: TaskLayers) -> tuple[Sandbox, float]:
    """Run the commands of an episode in one shell; return the sandbox, still alive, and their processor seconds."""
    sandbox, spent_s = await backend.create(layers.spec(dict(task.base_files))), 0.0
    session = await sandbox.open_session()
    for command in COMMANDS:
        done = await session.run(command, timeout_s=120)
        if done.exit_status != 0 and "pytest" not in command:
            raise SystemExit(f"{command!r} failed: {done.stderr.decode()[-300:]}")
        spent_s += done.cpu_s
    return sandbox, spent_s


def our_episodes(instances: Instances, num: int) -> dict[str, float]:
    """Return seconds per episode; resident processes and the first start are part of the processor time."""
    of_commands, of_others = [0.0], dict[int, float]()

    async def run() -> list[float]:
        backend, times = NamespaceBackend(), []
        try:
            for number in range(num):
                pair = number % len(instances.tasks)
                begin = time.perf_counter()
                sandbox, spent_s = await episode(backend, instances.tasks[pair], instances.layers[pair])
                own_s = time.perf_counter() - begin
                of_commands.append(spent_s)
                living_cpu_s(of_others)
                begin = time.perf_counter()
                await sandbox.close()
                times.append(own_s + time.perf_counter() - begin)
        finally:
            await backend.close()
        return times

    before = cpu_s()
    times = asyncio.run(run())
    spent_s = cpu_s() - before + sum(of_commands) + sum(of_others.values())
    own_s = (spent_s - sum(of_commands)) / num
    return {"wall_s": statistics.median(times), "cpu_s": spent_s / num, "own_cpu_s": own_s}


def podman_episodes(num: int, runtime: str) -> dict[str, float]:
    """Return seconds per episode with the engine's commands that mini-swe-agent runs: run -d, exec, rm -f."""

    def podman(*arguments: str) -> str:
        own = ["--runtime", runtime] if runtime else []
        done = subprocess.run(["podman", *own, *arguments], capture_output=True, text=True, stdin=subprocess.DEVNULL)
        return done.stdout.strip()

    before, times = cpu_s(), []
    bounds = ("--network", "none", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096")
    for _ in range(num):
        begin = time.perf_counter()
        name = podman("run", "-d", "--rm", *bounds, "-w", "/testbed", _IMAGE, "sleep", "2h")
        for command in COMMANDS:
            podman("exec", "-w", "/testbed", name, "bash", "-lc", command)
        podman("rm", "-f", "-t", "0", name)
        times.append(time.perf_counter() - begin)
    return {"wall_s": statistics.median(times), "own_cpu_s": (cpu_s() - before) / num}


def mini_episodes(python: str, num: int, runtime: str) -> dict[str, float]:
    """Return seconds per episode of mini-swe-agent itself, with a model that answers from a list."""
    environ = {**os.environ, "MSWEA_SILENT_STARTUP": "1"}
    argv = [python, "-c", _MINI, _IMAGE, json.dumps(COMMANDS), str(num), runtime]
    done = subprocess.run(argv, capture_output=True, text=True, env=environ, check=False)
    if done.returncode != 0:
        raise SystemExit(f"mini-swe-agent failed: {done.stderr[-500:]}")
    result = json.loads(done.stdout.splitlines()[-1])
    return {"wall_s": statistics.median(result["times"]), "own_cpu_s": result["cpu_s"] / num}


# --- memory ----------------------------------------------------------------------------------------------------------


def own_bytes() -> int:
    """Return the memory of all processes that this one has started, shared pages counted once."""
    total = 0
    for process in psutil.Process().children(recursive=True):
        try:
            total += process.memory_full_info().pss
        except psutil.Error:
            continue
    return total


async def measure_live(instances: Instances, num: int) -> dict[str, Any]:
    """Return the memory of ``num`` episodes that are alive at once, beside what their certificates say."""
    backend, sampled, is_done = NamespaceBackend(), [0], asyncio.Event()

    async def sample() -> None:
        while not is_done.is_set():
            sampled.append(await asyncio.to_thread(own_bytes))
            await asyncio.sleep(0.5)

    async def one(number: int) -> Sandbox:
        pair = number % len(instances.tasks)
        return (await episode(backend, instances.tasks[pair], instances.layers[pair]))[0]

    sampling = asyncio.ensure_future(sample())
    try:
        begin = time.perf_counter()
        alive = await asyncio.gather(*(one(number) for number in range(num)))
        wall_s = time.perf_counter() - begin
        is_done.set()
        await sampling
        await asyncio.gather(*(sandbox.close() for sandbox in alive))
    finally:
        is_done.set()
        await backend.close()
    uses = [task.certificate.use for task in instances.tasks]
    told = sum(use.peak_memory_bytes for number in range(num) if (use := uses[number % len(uses)]))
    bound = sum(use.memory_limit_bytes for number in range(num) if (use := uses[number % len(uses)]))
    return {
        "num_live": num,
        "wall_s": wall_s,
        "peak_mb": max(sampled) / _MB,
        "certificates_peak_mb": told / _MB,
        "certificates_limit_mb": bound / _MB,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small image, few instances and rounds")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--live", type=int, help="episodes alive at once (default 64, --quick: 16)")
    parser.add_argument("--runtime", default="", help="OCI runtime of podman, e.g. runc; default: its own choice")
    parser.add_argument("--mini-swe-agent", default="", metavar="PYTHON", help="interpreter that has mini-swe-agent")
    arguments = parser.parse_args()
    quick = (200_000_000, 8, 3, 8, 6, 16)
    num_bytes, num_layers, num_instances, num_rounds, num_episodes, num_live = (
        quick if arguments.quick else (1_500_000_000, 20, 10, 20, 20, 64)
    )
    with tempfile.TemporaryDirectory(prefix="repairgym-image-tasks-") as name:
        folder = Path(name)
        instances = make_instances(folder, num_bytes, num_layers, num_instances)
        reason = import_into_podman(instances.root, folder / "merged", arguments.runtime)
        try:
            podman = None if reason else lambda: podman_run(arguments.runtime)
            result: dict[str, Any] = {"instances": instances.figures, "no_podman": reason}
            result["starts"] = asyncio.run(measure_starts(instances.layers[0], num_rounds, podman))
            result["episodes"] = {"ours": our_episodes(instances, num_episodes)}
            if not reason:
                result["episodes"]["podman"] = podman_episodes(num_episodes, arguments.runtime)
            if arguments.mini_swe_agent and not reason:
                result["episodes"]["mini_swe_agent"] = mini_episodes(
                    arguments.mini_swe_agent, num_episodes, arguments.runtime
                )
            result["live"] = asyncio.run(measure_live(instances, arguments.live or num_live))
        finally:
            if shutil.which("podman"):
                subprocess.run(["podman", "rmi", "-f", _IMAGE], capture_output=True)
        result["load"] = os.getloadavg()[0]
        show(result, is_json=arguments.json)


def show(result: dict[str, Any], *, is_json: bool) -> None:
    """Print the figures and the ratios to podman."""
    ours, ratios = result["episodes"]["ours"], dict[str, float]()
    for name, other in result["episodes"].items():
        if other is not ours:
            # The commands themselves are taken to cost the same in a container.
            other["cpu_s"] = other["own_cpu_s"] + ours["cpu_s"] - ours["own_cpu_s"]
            ratios |= {f"{name}, {kind}": other[kind] / ours[kind] for kind in ours}
    result["ratios"] = ratios
    if podman := result["starts"].get("podman_run_true_ms"):
        names = ("start_ms", "start_true_end_ms")
        result["ratios"] |= {f"podman, {name}": podman["median"] / result["starts"][name]["median"] for name in names}
    if is_json:
        json.dump(result, sys.stdout, indent=2)
        return
    for part, figures in result.items():
        lines = figures if isinstance(figures, dict) else {"": figures}
        for name, value in lines.items():
            print(f"{part:<10} {name:<28} {value if not isinstance(value, float) else round(value, 3)}")


if __name__ == "__main__":
    main()
