"""`repairgym layers`: container images in the layer store, and commands in them."""

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from repairgym.cli.display import ProgressDisplay
from repairgym.cli.options import AsJson, Config, Overrides
from repairgym.config.loading import load_config
from repairgym.config.sandbox import LayersConfig, SandboxConfig
from repairgym.sandbox.base import ExecResult, SandboxSpec
from repairgym.sandbox.probe import create_backend
from repairgym.tasks.layers.images.installed import find_image, root_of
from repairgym.tasks.layers.images.pull import NUM_PARALLEL, Pull, pull
from repairgym.tasks.layers.store import LayerStore

app = typer.Typer(add_completion=False, no_args_is_help=True)
_TIMEOUT_STATUS, _SIGNAL_STATUS = 124, 128
"""Exit statuses as `timeout` and shells have them."""


@app.callback()
def layers() -> None:
    """Pull container images into the layer store and run commands in them, without an engine and without root."""


@app.command("pull")
def pull_image(
    image: Annotated[
        str, typer.Argument(help="HOST/NAME:TAG or HOST/NAME@DIGEST, an archive of docker save, or an OCI folder.")
    ],
    overrides: Overrides = None,
    platform: Annotated[
        str, typer.Option("--platform", help="For instance linux/arm64; default: this machine's.")
    ] = "",
    num_parallel: Annotated[int, typer.Option("--jobs", min=1, help="Layers fetched at once.")] = NUM_PARALLEL,
    is_json: AsJson = False,
) -> None:
    """Fetch and unpack the layers of an image that the store lacks; an interrupted pull resumes.

    Example: repairgym layers pull registry.example/team/image:latest

    Example: repairgym layers pull image.tar --json
    """
    store = LayerStore(config=load_config(LayersConfig, None, overrides or []))
    with ProgressDisplay() as progress:
        done = pull(store, image, platform=platform, num_parallel=num_parallel, progress=progress)
    if is_json:
        typer.echo(done.model_dump_json(indent=2))
    else:
        Console().print(_words(done), highlight=False, markup=False, soft_wrap=True)


def _words(done: Pull) -> str:
    num_new = sum(layer.is_new for layer in done.layers)
    moved = f"{num_new} of {len(done.layers)} layers are new, {done.num_bytes_moved / 1e6:.1f} MB moved"
    return f"{done.image.image_id}\n{done.image.name} ({done.image.platform}): {moved}"


@app.command("run")
def run_in_image(
    image: Annotated[str, typer.Argument(help="Name, id or first digits of the id of a pulled image.")],
    command: Annotated[list[str], typer.Argument(help="Program and its arguments, after --.")],
    tree: Annotated[Path | None, typer.Option("--tree", help="Folder shown at /testbed; it is never changed.")] = None,
    timeout_s: Annotated[float, typer.Option("--timeout", min=0.001, help="Seconds until it is ended.")] = 600.0,
    config: Config = None,
) -> None:
    """Run a command in a new sandbox over an image; what it changes is gone afterwards.

    The exit status is the command's, 124 after the time-out. --config sets the sandbox, e.g. its limits.

    Example: repairgym layers run registry.example/team/image:latest -- python3 -c 'print(1)'
    """
    settings = load_config(SandboxConfig, config, [])
    store = LayerStore()
    pulled = find_image(store, image)
    with tempfile.TemporaryDirectory(prefix="repairgym-empty-") as empty:
        spec = SandboxSpec(
            environment=Path("/"), tree=tree or Path(empty), root=root_of(store, pulled), limits=settings.limits
        )
        done = asyncio.run(_run(settings, spec, tuple(command), timeout_s, pulled.working_folder))
    sys.stdout.buffer.write(done.stdout)
    sys.stderr.buffer.write(done.stderr)
    status = _SIGNAL_STATUS + (done.signal or 0) if done.exit_status is None else done.exit_status
    raise typer.Exit(_TIMEOUT_STATUS if done.is_timed_out else status)


async def _run(
    settings: SandboxConfig, spec: SandboxSpec, command: tuple[str, ...], timeout_s: float, cwd: str
) -> ExecResult:
    backend = create_backend(settings)
    try:
        sandbox = await backend.create(spec)
        return await sandbox.exec(command, timeout_s=timeout_s, cwd=cwd)
    finally:
        await backend.close()
