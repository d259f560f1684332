"""`repairgym serve-tasks`: tasks for agents and trainers of others that call tools over a protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from repairgym.cli.arguments import check_tasks, tokenizer_folder
from repairgym.cli.options import Tasks, Tokenizer, configured
from repairgym.cli.preflights import show_selection
from repairgym.config.commands import ServeTasksConfig

if TYPE_CHECKING:
    from repairgym.inference.renderer import ChatRenderer
    from repairgym.records import Task
    from repairgym.rollout.store import RunStore

app = typer.Typer(help="Tasks for clients that call tools.", no_args_is_help=True, add_completion=False)

Run = Annotated[Path | None, typer.Option(help="Run folder that keeps the graded episodes; default: none is kept.")]
_configured = partial(configured, check_dry=show_selection)


@app.command()
@_configured
def openenv(tasks: Tasks, config: ServeTasksConfig, run: Run = None, model: Tokenizer = None) -> None:
    """Serve tasks as an OpenEnv environment: reset, step, state. Needs the extra `openenv`.

    Listens on the loopback interface; other addresses need a token (token_env). Ctrl-C stops it.

    Example: repairgym serve-tasks openenv tasks --run runs/openenv port=8010
    """
    from repairgym.bridges.clients.serving import require_websockets, serve_openenv

    require_websockets()
    with _opened(tasks, config, run, model) as (chosen, renderer, store):
        asyncio.run(serve_openenv(chosen, config, renderer, store, _say))


@app.command()
@_configured
def mcp(
    tasks: Tasks,
    config: ServeTasksConfig,
    run: Run = None,
    stdio: Annotated[
        bool, typer.Option("--stdio", help="Speak over standard input and output, for one client.")
    ] = False,
    model: Tokenizer = None,
) -> None:
    """Serve the tools of a pipeline over tasks by MCP, on streamable HTTP or stdio. Needs the extra `mcp`.

    Example: repairgym serve-tasks mcp tasks --run runs/mcp port=8010

    Example: repairgym serve-tasks mcp tasks --stdio select.ids=ID
    """
    from repairgym.bridges.clients.mcp import require_mcp
    from repairgym.bridges.clients.serving import serve_mcp, serve_mcp_stdio

    require_mcp()
    with _opened(tasks, config, run, model) as (chosen, renderer, store):
        if stdio:
            asyncio.run(serve_mcp_stdio(chosen, config, renderer, store))
        else:
            asyncio.run(serve_mcp(chosen, config, renderer, store, _say))


@contextmanager
def _opened(
    tasks: Path, config: ServeTasksConfig, run: Path | None, model: Path | None
) -> Iterator[tuple[list[Task], ChatRenderer, RunStore | None]]:
    """Choose the tasks, and open the run folder, locked, where one is named."""
    check_tasks(tasks)
    from repairgym.bridges.clients.episodes import PHASE
    from repairgym.inference.loading import load_tokenizer
    from repairgym.inference.renderer import ChatRenderer
    from repairgym.rollout.calls import locked
    from repairgym.rollout.store import RunStore
    from repairgym.tasks.selection import select_tasks
    from repairgym.tasks.store import TaskStore

    selected = select_tasks(list(TaskStore(tasks).load()), config.select)
    _say(f"select: {selected.summary}")
    renderer = ChatRenderer(load_tokenizer(tokenizer_folder(model)))
    if run is None:
        yield list(selected.tasks), renderer, None
        return
    run.mkdir(parents=True, exist_ok=True)
    path = run / "run.db"
    with locked(run), RunStore.open(path) if path.exists() else RunStore.create(path) as store, store.phase(PHASE):
        yield list(selected.tasks), renderer, store


def _say(text: str) -> None:
    # Standard output is the protocol's with --stdio.
    typer.echo(text, err=True)
