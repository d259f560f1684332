"""The start of a sandbox over a container image, beside a sandbox without one and `podman run` on the same files.

Makes the image from programs of this machine and files of noise: 1.5 GB in 20 layers (--quick: 0.2 GB in 8). The
runners take turns in one run, so that what else the machine does hits them alike: believe the ratios. Where podman does
not start, it is left out with the reason.

    python benchmarks/images.py --quick --json
    python benchmarks/images.py
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path

from repairgym.sandbox.backends.namespace import NamespaceBackend
from repairgym.sandbox.base import ImageRoot, SandboxSpec
from repairgym.sandbox.conformance import make_environment, make_tree
from repairgym.sandbox.conformance.host_image import ENVIRONMENT, make_image
from repairgym.testing.environments import copy_environment

_FILE_BYTES = 1 << 16
_MS = 1000.0
_NAME = "localhost/repairgym-benchmark-image"
Run = Callable[[], Awaitable[None]]


def fill(root: ImageRoot, folder: Path, num_bytes: int, num_layers: int) -> ImageRoot:
    """Return ``root`` with as many more layers of files as make ``num_bytes`` and ``num_layers``."""
    there = sum(path.lstat().st_size for layer in root.layers for path in layer.rglob("*"))
    layers = [folder / str(number) for number in range(num_layers - len(root.layers))]
    num_files = max(num_bytes - there, 0) // _FILE_BYTES // len(layers)
    noise = os.urandom(16 * _FILE_BYTES)
    for layer in layers:
        for number in range(num_files):
            path = layer / "data" / layer.name / str(number % 50) / str(number)
            path.parent.mkdir(parents=True, exist_ok=True)
            start = number * 4099 % (15 * _FILE_BYTES)
            path.write_bytes(noise[start : start + _FILE_BYTES])
    return ImageRoot(layers=(*root.layers, *layers), variables=root.variables)


def import_into_podman(root: ImageRoot, folder: Path, runtime: str) -> str:
    """Give podman the files of ``root`` as one image; return the reason why it cannot use them, or nothing."""
    try:
        folder.mkdir()
        for layer in root.layers:
            subprocess.run(["cp", "-al", f"{layer}/.", str(folder)], check=True)
        with subprocess.Popen(["tar", "-C", str(folder), "-c", "."], stdout=subprocess.PIPE) as tar:
            subprocess.run(["podman", "import", "-q", "-", _NAME], stdin=tar.stdout, check=True, capture_output=True)
        podman_run(runtime)
    except (OSError, subprocess.CalledProcessError) as error:
        return str(getattr(error, "stderr", None) or error)
    return ""


def podman_run(runtime: str) -> None:
    """Run `true` in a new container; ``runtime``: empty for the engine's own choice."""
    # Explicit, because the default may exceed what this process may grant.
    bounds = ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096"]
    bounds += ["--runtime", runtime] if runtime else []
    command = ["podman", "run", "--rm", "--network", "none", "--pull", "never", *bounds, _NAME, "true"]
    subprocess.run(command, check=True, capture_output=True, stdin=subprocess.DEVNULL)


def runners(backend: NamespaceBackend, specs: dict[str, SandboxSpec], podman: Run | None) -> dict[str, Run]:
    """Return what is timed."""

    def start(spec: SandboxSpec, *, with_true: bool) -> Run:
        async def run() -> None:
            sandbox = await backend.create(spec)
            if with_true:
                await sandbox.exec(("true",), timeout_s=60)
                await sandbox.close()
            else:
                asyncio.get_running_loop().call_soon(lambda: asyncio.ensure_future(sandbox.close()))

        return run

    timed = {f"{name}, start": start(spec, with_true=False) for name, spec in specs.items()}
    timed |= {f"{name}, start, true and end": start(spec, with_true=True) for name, spec in specs.items()}
    if podman is not None:
        timed["podman run --rm true"] = podman
    return timed


async def measure(specs: dict[str, SandboxSpec], num_rounds: int, podman: Run | None) -> dict[str, list[float]]:
    """Return the milliseconds of each runner, and of the first start of each spec."""
    backend = NamespaceBackend()
    times: dict[str, list[float]] = {}

    async def note(name: str, run: Run) -> None:
        begin = time.perf_counter()
        await run()
        times.setdefault(name, []).append((time.perf_counter() - begin) * _MS)
        await asyncio.sleep(0.02)

    try:
        timed = runners(backend, specs, podman)
        for name in specs:
            await note(f"{name}, first start", timed[f"{name}, start"])
        for _ in range(num_rounds):
            for name, run in timed.items():
                await note(name, run)
    finally:
        await backend.close()
    return times


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small image and few rounds")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--layers", type=int, help="number of layers")
    parser.add_argument("--runtime", default="", help="OCI runtime of podman, e.g. runc; default: its own choice")
    arguments = parser.parse_args()
    num_bytes, num_layers, num_rounds = (200_000_000, 8, 8) if arguments.quick else (1_500_000_000, 20, 20)
    num_layers = arguments.layers or num_layers
    with tempfile.TemporaryDirectory(prefix="repairgym-images-") as name, ExitStack() as stack:
        folder = Path(name)
        image = fill(make_image(folder / "image", copy_environment(folder / "packages")), folder, num_bytes, num_layers)
        reason = import_into_podman(image, folder / "merged", arguments.runtime)
        if shutil.which("podman"):
            stack.callback(subprocess.run, ["podman", "rmi", "-f", _NAME], capture_output=True)
        tree = make_tree(folder / "tree")
        specs = {
            "no image": SandboxSpec(environment=make_environment(folder / "bare"), tree=tree),
            "image": SandboxSpec(environment=ENVIRONMENT, tree=tree, root=image),
        }
        podman = None if reason else lambda: asyncio.to_thread(podman_run, arguments.runtime)
        # Shown before the files are removed, which takes as long as making them.
        show(asyncio.run(measure(specs, num_rounds, podman)), reason, is_json=arguments.json)


def show(times: dict[str, list[float]], reason: str, *, is_json: bool) -> None:
    """Print medians and the ratio to podman."""
    medians = {name: statistics.median(values) for name, values in times.items()}
    fastest = {name: min(values) for name, values in times.items()}
    podman, ours = medians.get("podman run --rm true"), medians["image, start, true and end"]
    ratios = {} if podman is None else {"command": podman / ours, "start": podman / medians["image, start"]}
    load = os.getloadavg()[0]
    if is_json:
        record = {
            "median_ms": medians,
            "fastest_ms": fastest,
            "podman_ratio": ratios,
            "load": load,
            "no_podman": reason,
        }
        json.dump(record, sys.stdout, indent=2)
        sys.stdout.flush()
        return
    print("| ms | median | fastest |\n|---|---:|---:|")
    for name, value in medians.items():
        print(f"| {name} | {value:.1f} | {fastest[name]:.1f} |")
    print(f"\npodman / ours: {ratios or reason}; load {load:.1f}", flush=True)


if __name__ == "__main__":
    main()
