"""`repairgym serve`: a model or a script behind the protocols of model providers."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from repairgym.cli.arguments import check_tasks, find_model, is_script, tokenizer_folder
from repairgym.cli.options import Config, DryRun, Overrides, Port, Preset, port_override, resolve
from repairgym.config.commands import ServeConfig
from repairgym.errors import ConfigError, InputError, install_hint

if TYPE_CHECKING:
    from repairgym.serving.models import ServedModel

UPSTREAM = "vllm"
"""The policy whose model is on the server of ``endpoint``."""


def serve(
    overrides: Overrides = None,
    policy: Annotated[
        str,
        typer.Option(
            help="Model folder (default: the shipped base), vllm (endpoint.*), a script, shell-oracle, shell-submit."
        ),
    ] = "",
    tasks: Annotated[Path | None, typer.Option(help="Folder of the tasks that scripts are asked about.")] = None,
    model: Annotated[Path | None, typer.Option(help="Folder whose tokenizer scripts and vllm use.")] = None,
    preset: Preset = "",
    config: Config = None,
    port: Port = None,
    dry_run: DryRun = False,
) -> None:
    """Serve a model to any agent: chat completions, completions, models. Needs the extra `serve`.

    Listens on the loopback interface; other addresses need a token (token_env). Ctrl-C stops it after running requests.

    Example: repairgym serve --policy runs/demo-DATE/checkpoints/rl --port 8000

    Example: repairgym serve --policy shell-oracle --tasks tasks --port 8000

    Example: repairgym serve --policy vllm --model FOLDER endpoint.base_url=http://HOST:8000/v1 endpoint.model=NAME
    """
    resolved = resolve(ServeConfig, [*(overrides or []), *port_override(port)], preset, config, dry_run)
    folder = None if policy == UPSTREAM else _find_served(policy, tasks)
    if tasks and (policy in ("", UPSTREAM) or folder):
        raise ConfigError("--tasks is for scripts, which are asked about tasks; a model answers without them")
    if missing := [name for name in ("starlette", "uvicorn") if find_spec(name) is None]:
        raise ConfigError(f"repairgym serve needs {' and '.join(missing)}: {install_hint('serve')}")
    asyncio.run(_serve(resolved, policy, folder, tasks, model))


def _find_served(policy: str, tasks: Path | None) -> Path | None:
    """Return the model folder of ``policy``; None for a script, which needs ``tasks``, and where none is named."""
    if is_script(policy) or policy.startswith("shell-"):
        if tasks is None:
            raise InputError(f"got --policy {policy!r}; a script needs --tasks FOLDER")
        check_tasks(tasks)
        return None
    return find_model(policy) if policy else None


async def _serve(config: ServeConfig, policy: str, folder: Path | None, tasks: Path | None, model: Path | None) -> None:
    from repairgym.inference.loading import shipped_base
    from repairgym.serving.process import read_token, serve

    read_token(config)  # fails before a model is loaded
    name = config.model_name or (served_name(policy) if policy else shipped_base().name)
    async with AsyncExitStack() as stack:
        if policy == UPSTREAM:
            name = config.model_name or config.endpoint.model
            served = await _open_upstream(config, model, stack)
        elif policy and tasks and not folder:
            if config.is_strict:
                raise ConfigError("is_strict=true: a script's answers have no log-probabilities; serve a model")
            served = _open_script(policy, tasks, model, config)
        else:
            served = _open_folder(folder or shipped_base(), config)
        await serve(served, name, config, lambda url: typer.echo(f"serving {name} at {url} (Ctrl-C ends it)"))


def served_name(policy: str) -> str:
    """Return the last part of ``policy``, that of the folder's real path where it is ``.`` or ``..``."""
    name = Path(policy).name
    return Path(policy).resolve().name if name in ("", "..") else name


async def _open_upstream(config: ServeConfig, model: Path | None, stack: AsyncExitStack) -> ServedModel:
    """Connect to the server of ``config.endpoint`` until ``stack`` ends, and check that tokens can be exact there."""
    from repairgym.inference.endpoint import EndpointClient
    from repairgym.inference.loading import load_tokenizer
    from repairgym.inference.renderer import ChatRenderer
    from repairgym.inference.vllm.preflight import Needs, check_servers
    from repairgym.inference.vllm.server import TokenServer
    from repairgym.serving.upstream import UpstreamModel

    if config.endpoint.prices:
        raise ConfigError("endpoint.prices: a server for clients adds up no costs; leave it out")
    renderer = ChatRenderer(load_tokenizer(tokenizer_folder(model)))
    client = await stack.enter_async_context(EndpointClient(config.endpoint))
    server = TokenServer(client)
    length = await server.max_len_tokens() or config.engine.max_len_tokens
    await check_servers([server], renderer, Needs(length, min(config.default_reply_tokens, length - 1)))
    return UpstreamModel(server, renderer, length, config.default_reply_tokens)


def _open_folder(folder: Path, config: ServeConfig) -> ServedModel:
    import torch

    from repairgym.inference.embedded import EmbeddedPolicy
    from repairgym.inference.loading import load_tokenizer
    from repairgym.inference.renderer import ChatRenderer
    from repairgym.serving.models import PolicyModel

    torch.set_num_threads(1)
    policy = EmbeddedPolicy.from_folder(folder, config.engine)
    renderer = ChatRenderer(load_tokenizer(folder))
    return PolicyModel(policy, renderer, policy.max_len_tokens, config.default_reply_tokens)


def _open_script(name: str, tasks: Path, model: Path | None, config: ServeConfig) -> ServedModel:
    from repairgym.agent.pipelines.registry import make_pipeline
    from repairgym.inference.loading import load_tokenizer, shipped_base
    from repairgym.inference.renderer import ChatRenderer
    from repairgym.sandbox.cache import ExecutionCache
    from repairgym.serving.models import ScriptModel
    from repairgym.serving.scripts import make_script
    from repairgym.tasks.store import TaskStore

    pipeline = make_pipeline(config.pipeline, ExecutionCache())
    answer = make_script(name, TaskStore(tasks).load(), pipeline, config.shell)
    return ScriptModel(answer, ChatRenderer(load_tokenizer(model or shipped_base())))
