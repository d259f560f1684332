"""`repairgym acp`: our agent for editors that speak the Agent Client Protocol."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from repairgym.cli.arguments import find_policy, tokenizer_folder
from repairgym.cli.options import Tokenizer, configured
from repairgym.config.commands import AcpConfig

TestCommand = Annotated[str, typer.Option("--test", help="Command in the editor's folder whose tests decide.")]
VirtualEnvironment = Annotated[
    str, typer.Option("--python", help="Virtual environment. Default: .venv or venv of the folder, else pytest alone.")
]
Policy = Annotated[str, typer.Option(help="Model folder, base or hub id; openai, vllm (endpoint.*).")]


@configured
def acp(
    config: AcpConfig,
    test: TestCommand = "pytest",
    python: VirtualEnvironment = "",
    policy: Policy = "base",
    model: Tokenizer = None,
) -> None:
    """Repair the folder of an editor that speaks the Agent Client Protocol over stdio. Needs the extra `acp`.

    The agent works in a sandbox on a copy; the editor shows its patch, and the user applies it or not.

    Example: repairgym acp --test "pytest tests" --policy base --preset demo_eval
    """
    from repairgym.bridges.clients.acp import FolderRepairer, require_acp, serve_acp

    require_acp()
    ref = find_policy(policy, config.rollout.temperature, config.endpoint)
    from repairgym.inference.loading import load_tokenizer
    from repairgym.inference.renderer import ChatRenderer
    from repairgym.solving.repositories import Repair

    tokenizer = load_tokenizer(tokenizer_folder(model, ref))
    renderer = ChatRenderer(tokenizer, is_thinking=config.rollout.pipeline.is_thinking)
    request = Repair(Path(), test, "", python)
    # A script or a server needs no torch; an engine shares the machine with sandboxes.
    asyncio.run(serve_acp(FolderRepairer(config, request, ref, renderer)))
