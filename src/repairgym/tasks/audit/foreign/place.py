"""A task folder's starting state in a sandbox, and runs of its verifier from there.

Reads a `HarborFolder` and `Probe` records (actions of an agent). Makes `Outcome` records. The Dockerfile's COPY and RUN
instructions are followed once; every run starts from a snapshot of that state. ``/tests`` and ``/solution`` appear when
Harbor would copy them. Guarantees: no network; an installer in a script finds the packages of the environment or names
what is missing; the folder's own files stay as they are.
"""

import io
import re
import shlex
import tarfile
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from repairgym.config.sandbox import SandboxLimits
from repairgym.errors import IndexUnavailableError, SandboxUnavailableError
from repairgym.sandbox.base import ExecResult, Sandbox, SandboxBackend, SandboxSpec, Snapshot
from repairgym.tasks.audit.foreign.harbor_folder import (
    DEFAULT_PATH,
    SOLUTION_SCRIPT,
    TEST_SCRIPT,
    Copy,
    Files,
    HarborFolder,
    TaskFile,
)
from repairgym.tasks.audit.foreign.rewards import Reward, read_reward
from repairgym.tasks.layers.environments import build_environment, read_lock
from repairgym.tasks.layers.store import LayerStore

IMAGE, OWN = "/testbed/.image", "/tmp/.harbor"
"""Folders that hold the image's files outside of /testbed and /tmp, and what a run adds."""
MARKS = f"{OWN}/marks"
"""Folder in which files of a probe leave a sign that they were used."""
_INSTALLERS = ("apt-get", "apt", "apk", "pip", "pip3", "uv", "uvx", "curl", "wget", "pytest")
_LINKS = {"/tests": f"{OWN}/tests", "/solution": f"{OWN}/solution", "/logs": f"{OWN}/logs"}
_SYSTEM = {"bin", "sbin", "lib", "lib64", "dev", "proc", "sys", "tmp", "testbed", "tests", "solution", "logs"}
_PARTLY = {"usr", "etc", "var", "opt", "root", "run"}
"""Folders of the sandbox's own root in which single paths of an image get a link."""
_PATH = re.compile(r"(?<![\w./~$})-])/[A-Za-z_][\w.-]*(?:/[\w.-]+)*")
_LIMITS = SandboxLimits(num_processes=256)
_STEP_TIMEOUT_S, _VERIFIER_TIMEOUT_S = 60.0, 120.0
_TRAP = f"""if [[ $0 == /tests/* ]]; then trap 'echo "$LINENO $? $BASH_COMMAND" >> {MARKS}/failed_commands' ERR; fi\n"""
"""Shell code that records commands of the verifier that fail and whose status nothing looks at."""


@dataclass(frozen=True)
class Probe:
    """Actions of an agent before the verifier runs."""

    name: str
    files: Mapping[str, str] = field(default_factory=dict)
    """Absolute path -> text."""
    removed: tuple[str, ...] = ()
    """Absolute paths of files that are removed."""
    script: str = ""
    """Shell code in the working folder."""
    background: str = ""
    """Shell code that still runs next to the verifier."""
    is_solved: bool = False
    """Start from the state that the reference solution made."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """More variables of the verifier."""
    paths: Iterable[str] = ()
    """Paths of the image whose existence after the run is asked for; may hold patterns."""


@dataclass(frozen=True)
class Outcome:
    """One run of the verifier."""

    reward: Reward
    output: str
    failed_commands: list[str]
    """Commands of the verifier that failed unnoticed: line, status, text."""
    marks: set[str]
    """Names of the files in `MARKS`."""
    existing: set[str]
    """Those of the probe's paths that exist."""
    duration_s: float


class Place:
    """A folder's states in sandboxes of one back end."""

    def __init__(self, folder: HarborFolder, backend: SandboxBackend, spec: SandboxSpec) -> None:
        self._folder, self._backend, self._spec = folder, backend, spec
        self._snapshots: dict[bool, Snapshot] = {}
        self.timeout_s = _VERIFIER_TIMEOUT_S
        """Bound on one run of the verifier."""
        self.log = ""
        """Output of image and solution."""
        self.initial: dict[str, bytes] = {}
        """The image's files by absolute path."""
        self.solved: dict[str, bytes | None] = {}
        """Files that the solution changed (None: removed)."""

    async def build(self) -> None:
        """Make the agent's starting state."""
        sandbox = await self._backend.create(self._spec)
        try:
            await _unpack(sandbox, {f"{OWN}/{path}": file for path, file in _own_files().items()})
            links = " ".join(f"{OWN}/bin/{name}" for name in _INSTALLERS)
            folders = " ".join(shlex.quote(path) for path in _folders(self._spec.links))
            script = f"for name in {links}; do ln -s installers $name; done; mkdir -p {MARKS} {OWN}/home/.local/bin "
            script += (
                f"{OWN}/logs/verifier {OWN}/logs/agent {folders} {shlex.quote(physical(self._folder.image.folder))}"
            )
            await self._exec(sandbox, f"{script}; touch {OWN}/home/.local/bin/env", cwd="/")
            for step in self._folder.image.steps:
                if isinstance(step, Copy):
                    self.log += await _unpack(sandbox, step.files)
                else:
                    done = await self._exec(sandbox, f"mkdir -p .; {step.command}", cwd=step.folder)
                    self.log += _text(done) if done.exit_status else ""
            self.initial = await _image_files(sandbox)
            self._snapshots[False] = await sandbox.snapshot()
        finally:
            await sandbox.close()

    async def solve(self) -> int | None:
        """Run the solution, keep the state it makes, and return its exit status."""
        sandbox = await self._backend.create(self._spec, snapshot=self._snapshots[False])
        try:
            await _unpack(sandbox, _below("/solution", self._folder.solution))
            done = await self._exec(sandbox, f"bash /solution/{SOLUTION_SCRIPT}")
            self.log += _text(done)
            files = await _image_files(sandbox)
            self.solved = {path: text for path, text in files.items() if self.initial.get(path) != text}
            self.solved |= dict.fromkeys(self.initial.keys() - files.keys())
            await self._exec(sandbox, f"rm -rf {OWN}/solution")
            if True in self._snapshots:
                await self._snapshots[True].close()
            self._snapshots[True] = await sandbox.snapshot()
            return done.exit_status
        finally:
            await sandbox.close()

    async def run(self, probe: Probe) -> Outcome:
        """Do what ``probe`` says and run the verifier."""
        sandbox = await self._backend.create(self._spec, snapshot=self._snapshots[probe.is_solved])
        try:
            await _unpack(sandbox, {path: TaskFile(text.encode(), 0o755) for path, text in probe.files.items()})
            if probe.removed:
                await self._exec(sandbox, 'rm -f -- "$@"', cwd="/", arguments=tuple(map(physical, probe.removed)))
            if probe.script:
                await self._exec(sandbox, probe.script)
            if self._folder.is_separate:
                sandbox = await self._carried_over(sandbox)
            await self._exec(sandbox, f"rm -rf {OWN}/tests", cwd="/")
            await _unpack(sandbox, _below("/tests", self._folder.tests))
            return await self._verify(sandbox, probe)
        finally:
            await sandbox.close()

    async def _carried_over(self, sandbox: Sandbox) -> Sandbox:
        """Close the agent's ``sandbox`` and return a new one with its artifacts, as Harbor's separate verifier has."""
        files = await _image_files(sandbox)
        carried = {
            path: TaskFile(content, 0o755)
            for path, content in files.items()
            if any(PurePosixPath(path).is_relative_to(artifact) for artifact in self._folder.artifacts)
        }
        await sandbox.close()
        fresh = await self._backend.create(self._spec, snapshot=self._snapshots[False])
        if "Dockerfile" in self._folder.tests:  # the verifier's own image has nothing of the agent's
            folders = tuple(map(physical, self._folder.artifacts))
            await self._exec(fresh, 'rm -rf -- "$@"; mkdir -p -- "$@"', cwd="/", arguments=folders)
        await _unpack(fresh, carried)
        return fresh

    async def _verify(self, sandbox: Sandbox, probe: Probe) -> Outcome:
        settings = self._folder.settings.get("verifier", {})
        variables = {str(name): str(value) for name, value in settings.get("env", {}).items()}
        variables |= {"BASH_ENV": f"{OWN}/trap.sh", **probe.environment}
        script = f"chmod +x /tests/{TEST_SCRIPT}; ({probe.background or ':'}) & /tests/{TEST_SCRIPT}; status=$?; "
        script += ("sleep 1; " if probe.background else "") + "exit $status"
        start = time.monotonic()
        done = await self._exec(sandbox, script, timeout_s=self.timeout_s, environment=variables)
        return await self._outcome(sandbox, probe, done, time.monotonic() - start)

    async def _outcome(self, sandbox: Sandbox, probe: Probe, done: ExecResult, duration_s: float) -> Outcome:
        """Read what the verifier left."""
        files = f"/logs/verifier/reward.txt /logs/verifier/reward.json {MARKS}/failed_commands"
        script = f"for f in {files}; do if [ -f $f ]; then head -c 9999 $f; fi; printf '\\0'; done; ls {MARKS}"
        script += '; printf \'\\0\'; for p in "$@"; do for f in $p; do if [ -e "$f" ]; then echo "$p"; fi; done; done'
        listing = await self._exec(sandbox, script, cwd="/", arguments=tuple(probe.paths))
        text, json_text, failed, names, paths = listing.stdout.decode("utf-8", "replace").split("\0")
        return Outcome(
            reward=read_reward(text, json_text),
            output=_text(done),
            failed_commands=failed.splitlines(),
            marks=set(names.split()),
            existing=set(paths.splitlines()),
            duration_s=duration_s,
        )

    async def close(self) -> None:
        """Release the snapshots."""
        for snapshot in self._snapshots.values():
            await snapshot.close()

    async def _exec(
        self,
        sandbox: Sandbox,
        script: str,
        *,
        cwd: str = "",
        timeout_s: float = _STEP_TIMEOUT_S,
        environment: Mapping[str, str] | None = None,
        arguments: tuple[str, ...] = (),
    ) -> ExecResult:
        image = self._folder.image
        path = f"{OWN}/bin:{image.environment.get('PATH', DEFAULT_PATH)}"
        fixed = {"HOME": f"{OWN}/home", "PYTHONHASHSEED": "random", "PATH": path}
        variables = {**image.environment, **fixed, **(environment or {})}
        folder = "/" if cwd == "/" else physical(cwd or image.folder)
        return await sandbox.exec(
            ("bash", "-c", script, "bash", *arguments), timeout_s=timeout_s, cwd=folder, env=variables
        )


def environment_of(path: Path, store: LayerStore) -> Path:
    """Return the environment of the lock of the folder ``path``, or one with pytest alone where that cannot be built.

    Raises:
        IndexUnavailableError: no environment is here, and no index answers.
    """
    lock = path / "environment" / "requirements.txt"
    text = lock.read_text(encoding="utf-8") if lock.is_file() else ""
    if "--hash=sha256:" in text:
        with suppress(IndexUnavailableError):
            return build_environment(store, text)[1]
    return build_environment(store, read_lock(()))[1]


@asynccontextmanager
async def opened(folder: HarborFolder, backend: SandboxBackend, environment: Path) -> AsyncIterator[Place]:
    """Give the place of ``folder`` with its starting state built."""
    if backend.name != "namespace":
        raise SandboxUnavailableError(
            f"an audit of a task folder needs the back end namespace, and got {backend.name}; see `repairgym doctor`"
        )
    with TemporaryDirectory(prefix="repairgym-audit-") as tree:
        spec = SandboxSpec(environment=environment, tree=Path(tree), links=_links(folder), limits=_LIMITS)
        place = Place(folder, backend, spec)
        try:
            await place.build()
            yield place
        finally:
            await place.close()


def physical(path: str) -> str:
    """Return the path in the sandbox at which the image's ``path`` lies."""
    for target, place in _LINKS.items():
        if path == target or path.startswith(f"{target}/"):
            return place + path[len(target) :]
    return path if path.startswith(("/testbed", "/tmp")) else IMAGE + path.rstrip("/")


def _links(folder: HarborFolder) -> dict[str, str]:
    """Return the links of the root that make the image's absolute paths work."""
    image = folder.image
    own = {*image.copied, image.folder, *(path for step in image.steps for path in _PATH.findall(_command(step)))}
    texts = [folder.instruction, *folder.scripts.values(), *(file.text for file in folder.solution.values())]
    mentioned = {path for text in texts for path in _PATH.findall(text)}
    roots = {root for path in own | mentioned if (root := _root(path, is_own=path in own))}
    return {root: IMAGE + root for root in roots} | _LINKS | {"/root/.local": f"{OWN}/home/.local"}


def _command(step: object) -> str:
    return getattr(step, "command", "")


def _root(path: str, *, is_own: bool) -> str:
    """Return the first part of ``path`` that the sandbox's root lacks; empty when a link is not wanted."""
    parts = PurePosixPath(path).parts[1:]
    if not parts or parts[0] in _SYSTEM:
        return ""
    if parts[0] not in _PARTLY:
        return f"/{parts[0]}"
    is_linkable = is_own and len(parts) > 1 and (parts[0] != "usr" or parts[1] == "src")
    return f"/{parts[0]}/{parts[1]}" if is_linkable and parts[:2] not in {("opt", "env"), ("root", ".local")} else ""


def _folders(links: Mapping[str, str]) -> list[str]:
    """Return the folders that links need; a name with a suffix at the top is a file."""
    targets = (target for link, target in links.items() if target.startswith(IMAGE))
    return [target if "." not in target[len(IMAGE) :] else str(PurePosixPath(target).parent) for target in targets]


def _own_files() -> dict[str, TaskFile]:
    script = Path(__file__).parent / "guest" / "installers.py"
    program = b"#!/opt/env/bin/python -I\n" + script.read_bytes()
    return {"bin/installers": TaskFile(program, 0o755), "trap.sh": TaskFile(_TRAP.encode(), 0o644)}


def _below(folder: str, files: Files) -> dict[str, TaskFile]:
    return {f"{folder}/{path}": file for path, file in files.items()}


async def _unpack(sandbox: Sandbox, files: Files) -> str:
    """Write ``files`` (absolute paths of the image); return the errors of those that cannot be."""
    if not files:
        return ""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, file in files.items():
            entry = tarfile.TarInfo(physical(path).lstrip("/"))
            entry.size, entry.mode = len(file.content), file.mode
            archive.addfile(entry, io.BytesIO(file.content))
    command = ("tar", "-xf", "-", "-C", "/", "--no-same-owner", "--overwrite")
    return _text(await sandbox.exec(command, timeout_s=_STEP_TIMEOUT_S, cwd="/", stdin=buffer.getvalue()))


async def _image_files(sandbox: Sandbox) -> dict[str, bytes]:
    """Return the files below /testbed by their absolute path in the image."""
    files = await sandbox.changed_files()
    inner = IMAGE.removeprefix("/testbed/")
    return {
        path[len(inner) :] if path.startswith(f"{inner}/") else f"/testbed/{path}": content
        for path, content in files.items()
        if content is not None
    }


def _text(done: ExecResult) -> str:
    return (done.stdout + done.stderr).decode("utf-8", "replace")
