"""`repairgym layers`: container images in the layer store."""

from typing import Annotated

import typer
from rich.console import Console

from repairgym.cli.display import ProgressDisplay
from repairgym.cli.options import AsJson, Overrides
from repairgym.config.loading import load_config
from repairgym.config.sandbox import LayersConfig
from repairgym.tasks.layers.images.pull import NUM_PARALLEL, Pull, pull
from repairgym.tasks.layers.store import LayerStore

app = typer.Typer(add_completion=False, no_args_is_help=True)


@app.callback()
def layers() -> None:
    """Pull container images into the layer store, without an engine and without root."""


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
