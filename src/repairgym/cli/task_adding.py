"""`repairgym tasks add`: a catalogue entry for a package by name, or for a git repository."""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from repairgym.cli.display import ProgressDisplay
from repairgym.cli.options import AsJson, print_json
from repairgym.cli.still_running import StillRunning
from repairgym.config.sandbox import SandboxConfig
from repairgym.errors import ConfigError, Interrupted
from repairgym.records import Split

if TYPE_CHECKING:
    from repairgym.tasks.adding.adding import Added, Adder
    from repairgym.tasks.adding.npm import NpmAdder
    from repairgym.tasks.adding.npm_trial import NodeTrial


DEFAULT_PAIRS = 8


def add(
    source: Annotated[str, typer.Argument(help="Package on the index, or path or URL of a git repository.")],
    catalogue: Annotated[Path, typer.Option("--catalogue", help="Catalogue file to extend.")] = Path("mine.toml"),
    locks: Annotated[Path, typer.Option("--locks", help="Folder for the lock.")] = Path("locks"),
    split: Annotated[Split, typer.Option("--split", help="Split of all its tasks.")] = "train",
    num_pairs: Annotated[
        int | None, typer.Option("--pairs", min=0, help="Most pairs of releases, newest first; default: 8.")
    ] = None,
    is_repository: Annotated[
        bool, typer.Option("--repository", help="SOURCE is a git repository, whatever it looks like.")
    ] = False,
    is_npm: Annotated[bool, typer.Option("--npm", help="SOURCE is a package of the npm registry.")] = False,
    node: Annotated[
        str, typer.Option("--node", help="Version or major of node to pin, of JavaScript only; default: this one's.")
    ] = "",
    name: Annotated[str, typer.Option("--name", help="Name of a repository's entry; default: the project's own.")] = "",
    subdirectory: Annotated[str, typer.Option("--subdirectory", help="The project's folder in a monorepo.")] = "",
    is_confirmed: Annotated[bool, typer.Option("--yes", help="Write without asking.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the entry and write nothing.")] = False,
    is_json: AsJson = False,
) -> None:
    """Find everything a catalogue entry needs, run the tests three times in a sandbox, and write entry and lock.

    On a terminal it shows the entry and asks before it writes. An interrupted command continues where it was.

    Example: repairgym tasks add schema --catalogue mine.toml --locks locks

    Example: repairgym tasks add --npm qs

    Example: repairgym tasks add --repository /srv/clones/sqlparse --dry-run
    """
    from repairgym.tasks.adding.adding import looks_like_repository
    from repairgym.tasks.adding.entry import check_is_new

    is_repository = is_repository or (not is_npm and looks_like_repository(source))
    _check_npm(is_npm, is_repository, node)
    _check_of_repository(is_repository, name, subdirectory, num_pairs)
    if not is_repository:
        check_is_new(catalogue, source, "npm" if is_npm else "package")

    def call(adder: Adder) -> Awaitable[Added]:
        if is_repository:
            return _of_repository(adder, source, subdirectory, node, name, catalogue)
        made = _of_npm(adder, node) if is_npm else adder
        return made.package(source, DEFAULT_PAIRS if num_pairs is None else num_pairs)

    added = _find(call, source, split, locks)
    if is_written := not dry_run and (is_confirmed or _is_agreed(added, is_json)):
        added.write(catalogue, locks)
    _show(added, catalogue, locks, is_written, is_json)


def _check_of_repository(is_repository: bool, name: str, subdirectory: str, num_pairs: int | None) -> None:
    if is_repository and num_pairs is not None:
        raise ConfigError("--pairs is of packages; a repository has commits, which history.num_commits bounds")
    if not is_repository and (name or subdirectory):
        raise ConfigError("--name and --subdirectory are of repositories; add --repository, or leave them out")


def _check_npm(is_npm: bool, is_repository: bool, node: str) -> None:
    if (is_npm and is_repository) or (node and not (is_npm or is_repository)):
        raise ConfigError("--npm is of packages of npm, and --node of JavaScript; leave one out")


def _of_repository(
    adder: Adder, url: str, subdirectory: str, node: str, name: str, catalogue: Path
) -> Awaitable[Added]:
    """Add the repository ``url``: a ``package.json`` without a Python project makes it JavaScript's.

    Raises:
        InputError: ``catalogue`` has it already.
    """
    from repairgym.tasks.adding.adding import project_name
    from repairgym.tasks.adding.entry import check_is_new
    from repairgym.tasks.adding.npm_repository import NpmRepositoryAdder, is_npm_repository, name_in_catalogue
    from repairgym.tasks.layers.repositories import GitRepository

    adder.say(f"opens {url}")
    clone = GitRepository.open(url, adder.store, subdirectory)
    commit = clone.resolve("HEAD")
    is_npm = is_npm_repository(clone, commit)
    find_name = name_in_catalogue if is_npm else project_name
    check_is_new(catalogue, name or find_name(clone, commit, url), "repository")
    if is_npm:
        return NpmRepositoryAdder(_node_trial(adder, adder.command, node)).repository(url, name, subdirectory)
    if node:
        raise ConfigError(f"--node is of JavaScript, and {url} has no package.json, or is a Python project")
    return adder.repository(url, name, subdirectory)


def _of_npm(adder: Adder, node: str) -> NpmAdder:
    from repairgym.tasks.adding.npm import NpmAdder

    return NpmAdder(_node_trial(adder, f"{adder.command} --npm", node))


def _node_trial(adder: Adder, command: str, node: str) -> NodeTrial:
    from repairgym.tasks.adding.npm_trial import NodeTrial

    return NodeTrial(adder.store, adder.backend, adder.split, command, adder.say, node)


def _show(added: Added, catalogue: Path, locks: Path, is_written: bool, is_json: bool) -> None:
    if is_json:
        print_json({**added.model_dump(mode="json", exclude={"lock"}), "is_written": is_written})
    else:
        _print(added, catalogue, locks, is_written)


def _find(call: Callable[[Adder], Awaitable[Added]], source: str, split: Split, locks: Path) -> Added:
    """Return what ``call`` finds; each step is printed before it starts."""
    from repairgym.sandbox.probe import create_backend
    from repairgym.tasks.adding.adding import Adder
    from repairgym.tasks.layers.environments import kept_or_resolved_lock
    from repairgym.tasks.layers.store import LayerStore

    async def run(progress: ProgressDisplay, running: StillRunning) -> Added:
        def say(text: str) -> None:
            progress(source, 0, 0, text)
            running.only(text)

        backend = create_backend(SandboxConfig())
        command = f"repairgym tasks add {shlex.quote(source)}"
        try:
            # A lock that other entries use already stays as it is.
            resolve = partial(kept_or_resolved_lock, locks)
            return await call(Adder(LayerStore(), backend, split, command, say, resolve=resolve))
        finally:
            await backend.close()

    try:
        with ProgressDisplay() as progress, StillRunning(progress) as running:
            return asyncio.run(run(progress, running))
    except KeyboardInterrupt as error:
        raise Interrupted("interrupted; finished downloads and runs are kept, run the same command again") from error


def _is_agreed(added: Added, is_json: bool) -> bool:
    """Return the answer of a terminal, after the entry was shown; True where nobody can answer."""
    if is_json or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return True
    typer.echo(added.entry)
    return typer.confirm("Write it?", default=True)


def _print(added: Added, catalogue: Path, locks: Path, is_written: bool) -> None:
    if not is_written:
        typer.echo(added.entry)
    is_small = not added.is_suite_running and added.num_passed >= added.num_failed
    state = "runs, but is small" if is_small else ("runs" if added.is_suite_running else "runs in part")
    typer.echo(
        f"{added.name} {added.version}: the suite {state}: {added.num_passed} tests pass, {added.num_failed} fail; "
        f"{added.num_files_kept} of {added.num_files} files are kept"
    )
    for problem in added.problems:
        typer.echo(f"  not done: {problem}")
    is_repository = added.kind in ("repository", "npm_repository")
    if not is_repository:
        typer.echo(f"  {added.num_pairs} pairs of releases with changed tests")
    else:
        why = ", ".join(f"{count} {reason}" for reason, count in sorted(added.dropped.items()))
        typer.echo(f"  {added.num_candidates} commits may be fixes; others: {why or 'none'}")
    if is_written:
        kinds = "mutations,history" if is_repository else "mutations,releases"
        typer.echo(f"written to {catalogue} and {locks / added.lock_name}; make its tasks with:")
        typer.echo(
            f"  repairgym tasks build tasks catalogue={catalogue} locks={locks} packages={added.name} sources={kinds}"
        )
