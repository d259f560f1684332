"""The environment of a project of JavaScript that is to be added: a lock that does not hold the project itself.

Reads what the project needs, and its own lock. Makes locks. Guarantees: the project is no package of the environment,
where its repaired code could be read; what a lock has otherwise than the project asks for is told.
"""

import math
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from repairgym.errors import PackageNotFoundError, RepairGymError, TaskError
from repairgym.tasks.adding.npm_project import FRAMEWORKS, NodeFolder
from repairgym.tasks.adding.trial import Say
from repairgym.tasks.layers.environments import build_environment
from repairgym.tasks.layers.npm_locks import (
    chain_to,
    locked_names,
    names_that_need,
    pinned_npm_lock,
    resolve_npm_lock,
)
from repairgym.tasks.layers.store import LayerStore

_LOWEST = re.compile(r"(?<![<\d.])(?:>=|[\^~=v])?\s*v?(\d+)(?:\.(\d+))?(?:\.(\d+))?")
"""The lowest version of one alternative of a range."""


_OLDEST = {"mocha": 8}
"""Framework -> the oldest major version that its runner here can use."""
_MISSING = re.compile(r"(?:No matching version found for |')(@?[^@\s']+)@")
"""The package in npm's words for one that the registry does not have."""


class Resolved(NamedTuple):
    """A lock, and in what it differs from what the project asks for."""

    lock: str
    left_out: frozenset[str] = frozenset()
    """Packages that need the project itself, none of which is in the lock."""
    told: tuple[str, ...] = ()
    """The differences, a sentence each."""


def own_or_resolved_lock(store: LayerStore, folder: NodeFolder, node_version: str, say: Say) -> Resolved:
    """Return the project's own ``package-lock.json`` where it can serve, else a lock of the ranges (and why).

    Raises:
        TaskError: every lock holds the project itself.
    """
    told = folder.unread_options
    declared = folder.declared.get(folder.runner, "")
    if declared and (lowest := _LOWEST.search(declared)) and int(lowest[1]) < _OLDEST.get(folder.runner, 0):
        told = (*told, f"{folder.runner} {declared} is too old for the runner here; a newer one runs the tests")
        declared = ""
    for sentence in told:
        say(sentence)
    versions = tuple(dict.fromkeys((declared, *FRAMEWORKS[folder.runner]) if declared else FRAMEWORKS[folder.runner]))
    if (own := folder.tree / "package-lock.json").is_file():
        say("installs the project's own package-lock.json")
        try:
            lock = pinned_npm_lock(own.read_text("utf-8"), folder.declared, node_version)
            if missing := sorted(set(folder.tools(versions[0])) - locked_names(lock)):
                raise TaskError(f"it lacks {', '.join(missing)}")
            if folder.runner in folder.declared and not declared:
                raise TaskError(f"it holds an old {folder.runner}")
            if chain := chain_to(lock, folder.name):
                raise TaskError(f"it holds the project itself: {' > '.join(chain)}")
            build_environment(store, lock)
            return Resolved(lock, told=told)
        except RepairGymError as error:
            told = (*told, f"package-lock.json is not used as it is: {error}")
            say(told[-1])
    elif others := [name for name in ("pnpm-lock.yaml", "yarn.lock") if (folder.tree / name).is_file()]:
        told = (*told, f"{others[0]} is not read: locks of npm are")
        say(told[-1])
    resolved = resolve_without_itself(folder, (), versions, node_version, say)
    return resolved._replace(told=(*told, *resolved.told))


def resolve_without_itself(
    newest: NodeFolder, older: Sequence[NodeFolder], versions: Sequence[str], node_version: str, say: Say
) -> Resolved:
    """Return a lock with what ``newest`` and ``older`` need, and with the first possible version of the framework.

    Where one of their packages leads to the project itself, it is left out if tests alone need it, and what the older
    releases need whose sources need it.

    Raises:
        TaskError: a package that the sources need, or each version of the framework, needs the project.
    """
    name, users, fitting = newest.name, set[str](), list(versions)
    own, others = newest.needed, [(folder, folder.needed) for folder in older]  # both read all files of a folder
    needed = _joined([*(each for _, each in others), own])
    chain: tuple[str, ...] = ()
    while fitting and not users & newest.required.keys():
        wanted = {key: range_ for key, range_ in needed.items() if key not in users} | newest.tools(fitting[0])
        lock, gone = _resolve(wanted, newest.required, node_version, say)
        if name not in locked_names(lock):
            left_out = frozenset(users)
            told = _differences(newest, versions[0], fitting[0], left_out, chain)
            return Resolved(lock, left_out, (*gone, *told))
        chain, new = chain or chain_to(lock, name), names_that_need(lock, name)
        if newest.runner in new:
            say(f"{newest.runner} {fitting[0]} needs {name} itself; looks for another version of it")
            chain = chain_to(lock, name, newest.runner)
            fitting = [other for other in fitting[1:] if not _leads_to(name, newest.tools(other), node_version)]
        elif new <= users:  # what reads the tests needs it
            break
        users |= new - {newest.runner}
        usable = [each for folder, each in others if not users & folder.required.keys()]
        needed = _joined([*usable, own])
    what = sorted(users & newest.required.keys())
    cause = f"{what[0]}, which its code needs," if what else f"each known version of {newest.runner}"
    raise TaskError(
        f"{name} would be a package of its own environment, where its repaired code could be read: {cause} needs it "
        f"({' > '.join(chain)}); there is no task of it unless that dependency goes"
    )


def _leads_to(name: str, tools: Mapping[str, str], node_version: str) -> bool:
    return name in locked_names(resolve_npm_lock(tools, node_version))


def _resolve(
    wanted: Mapping[str, str], required: Mapping[str, str], node_version: str, say: Say
) -> tuple[str, tuple[str, ...]]:
    """Return a lock of ``wanted``, and a sentence for each package for development that the registry does not have.

    Raises:
        PackageNotFoundError: it does not have one of ``required``, in the wanted range.
    """
    left, told = dict(wanted), list[str]()
    while True:
        say(f"resolves a lock of {', '.join(f'{key}@{range_}' for key, range_ in left.items())}")
        try:
            return resolve_npm_lock(left, node_version), tuple(told)
        except PackageNotFoundError as error:
            missing = next((name for name in _MISSING.findall(str(error)) if name in left), "")
            if not missing or missing in required:
                raise
            told.append(f"no {missing}: the registry has no {missing}@{left.pop(missing)}; tests that need it fail")
            say(told[-1])


def _differences(
    folder: NodeFolder, wanted: str, got: str, left_out: frozenset[str], chain: tuple[str, ...]
) -> tuple[str, ...]:
    because = f", for {folder.name} would be in its own environment: {' > '.join(chain)}"
    told: list[str] = []
    if got != wanted:
        told.append(f"{folder.runner} {got} instead of {wanted}{because}")
    if names := sorted(left_out & folder.declared.keys() - {folder.runner}):
        told.append(f"no {', '.join(names)}{because}; tests that need it fail")
    return tuple(told)


def _joined(needs: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Return the packages of ``needs``; of two ranges the later one counts."""
    return {name: wanted for needed in needs for name, wanted in needed.items()}


def node_mismatch(settings: Mapping[str, Any], node_version: str) -> str:
    """Return a sentence where the node that will run is older than ``package.json`` asks for; else "".

    Args:
        settings: Content of ``package.json``.
        node_version: The node of the environment, or its major; empty: the machine's.
    """
    runtimes = (settings.get("devEngines") or {}).get("runtime") or []
    runtimes = runtimes if isinstance(runtimes, list) else [runtimes]
    for_development = [
        each.get("version") for each in runtimes if isinstance(each, dict) and each.get("name") == "node"
    ]
    wanted = str(next(iter(for_development), None) or (settings.get("engines") or {}).get("node", ""))
    version = node_version or _version_of_machine()
    lowest = [match for part in wanted.split("||") if (match := _LOWEST.search(part.strip()))]
    bounds = [tuple(int(number or 0) for number in match.groups()) for match in lowest]
    if not version or not bounds or _numbers(version) >= min(bounds):
        return ""
    return f"package.json asks for node {wanted}, and {version} runs the tests; --node {min(bounds)[0]} pins another"


def _numbers(version: str) -> tuple[float, ...]:
    """Return the three numbers of a version; a major stands for its newest one."""
    numbers = [float(part) for part in re.findall(r"\d+", version)[:3]]
    return (*numbers, *[math.inf] * (3 - len(numbers)))


def _version_of_machine() -> str:
    program = shutil.which("node")
    if program is None:
        return ""
    return (
        subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout.strip().lstrip("v")
    )
