"""Changes of manifests: the right editor by file name, the lock next to it by the ecosystem's own command.

Reads the workspace; writes a manifest and its lock together, or nothing. Guarantees: a changed text is read again, and
the dependency that was asked for is all that differs; a lock is only ever written by its own tool, offline, in a
sandbox copy, because hashes cannot be guessed.
"""

from pathlib import PurePosixPath

from repairgym.agent.tools.base import Observation, ToolContext, tool_error
from repairgym.agent.tools.manifests.entry import ManifestEditor, ManifestEntry, ManifestError
from repairgym.agent.tools.manifests.go_mod import GoModEditor
from repairgym.agent.tools.manifests.gradle import GradleEditor
from repairgym.agent.tools.manifests.package_json import PackageJsonEditor
from repairgym.agent.tools.manifests.pom import PomEditor
from repairgym.agent.tools.manifests.toml_files import CargoEditor, CatalogEditor
from repairgym.agent.tools.workspace import Workspace
from repairgym.tasks.logs.main_error import parse_main_error

EDITORS: tuple[ManifestEditor, ...] = (
    PackageJsonEditor(),
    PomEditor(),
    GradleEditor(),
    CatalogEditor(),
    GoModEditor(),
    CargoEditor(),
)
_NPM = ("npm", "install", "--package-lock-only", "--offline", "--ignore-scripts", "--no-audit", "--no-fund")
LOCKS: dict[str, dict[str, tuple[str, ...]]] = {
    "package.json": {
        "package-lock.json": _NPM,
        "npm-shrinkwrap.json": _NPM,
        "pnpm-lock.yaml": ("pnpm", "install", "--lockfile-only", "--offline", "--ignore-scripts"),
        "yarn.lock": ("yarn", "install", "--offline", "--ignore-scripts"),
    },
    "Cargo.toml": {"Cargo.lock": ("cargo", "metadata", "--offline", "--format-version", "1", "--quiet")},
    "go.mod": {"go.sum": ("go", "mod", "tidy")},
    "build.gradle": {"gradle.lockfile": ()},
    "build.gradle.kts": {"gradle.lockfile": ()},
}
"""Manifest -> lock -> command that writes it; empty: nothing writes it offline."""
_OFFLINE = {"GOPROXY": "off", "GOSUMDB": "off", "GOFLAGS": "-mod=mod", "GOTOOLCHAIN": "local"}
_FOREIGN = {"node_modules", "vendor", "target", ".gradle"}
"""Folders with what was installed or built."""
LOCK_TIMEOUT_S = 120.0


def editor_of(path: str) -> ManifestEditor | None:
    """Return the editor of ``path``; None where no ecosystem but Python's may have it."""
    return next((editor for editor in EDITORS if editor.is_manifest(path)), None)


def manifest_paths(workspace: Workspace) -> list[str]:
    """Return the manifests of the project itself."""
    paths = (path for path in workspace.paths("*") if not _FOREIGN & set(PurePosixPath(path).parts))
    return [path for path in paths if editor_of(path)]


def manifest_entries(workspace: Workspace, path: str = "") -> tuple[list[ManifestEntry], list[str]]:
    """Return the dependencies of ``path`` (default: of every manifest), and the errors of files that cannot be read."""
    paths = [path.removeprefix("./")] if path else manifest_paths(workspace)
    entries: list[ManifestEntry] = []
    errors: list[str] = []
    for name in paths:
        editor, text = editor_of(name), workspace.read(name)
        if editor is None or text is None:
            continue
        try:
            entries += editor.find(name, text)
        except ManifestError as error:
            errors.append(str(error))
    return entries, errors


def entries_named(workspace: Workspace, name: str, path: str) -> tuple[list[ManifestEntry], list[str]]:
    """Return the dependencies that ``name`` means, those of the full name where there are some; and errors."""
    entries, errors = manifest_entries(workspace, path)
    named = [entry for entry in entries if entry.name == name] or [entry for entry in entries if entry.is_named(name)]
    names = sorted({entry.name for entry in named})
    ecosystems = {editor.ecosystem: entry.path for entry in named if (editor := editor_of(entry.path))}
    if len(ecosystems) > 1:
        return [], [f"{name} means a dependency of {' and of '.join(ecosystems.values())}; give the path"]
    if len(names) > 1:
        return [], [f"{name} means {' and '.join(names)}; give the full name"]
    return named, errors


async def upgrade_entries(context: ToolContext, entries: list[ManifestEntry], version: str) -> Observation:
    """Ask for ``version`` in each of ``entries``; nothing is written where one of them cannot be changed."""
    editor = editor_of(entries[0].path)
    assert editor is not None
    if not version:
        return tool_error(f"give a version of {entries[0].name}: {editor.example}; nothing here says what is installed")
    changeable = [entry for entry in entries if not entry.problem]
    if not changeable:
        return tool_error(f"{entries[0].path}: {entries[0].place} {entries[0].name} {entries[0].problem}")
    texts: dict[str, str] = {}
    lines: list[str] = []
    for entry in reversed(changeable):
        editor = editor_of(entry.path)
        assert editor is not None
        if not editor.version_form.fullmatch(version):
            return tool_error(f"got version {version!r} for {entry.path}, expected one such as {editor.example}")
        text = texts.get(entry.path) or context.workspace.read(entry.path) or ""
        new = editor.with_version(text, entry, version)
        texts[entry.path] = new
        written = next((e.version for e in editor.find(entry.path, new) if _key(e) == _key(entry)), "")
        note = f" ({entry.note})" if entry.note else ""
        lines.append(f"{entry.path}: {entry.place} {entry.name} {entry.version} -> {written}{note}")
    skipped = [f"{entry.path}: {entry.place} {entry.name} stays: {entry.problem}" for entry in entries if entry.problem]
    return await _write(context, texts, [*reversed(lines), *skipped], {_key(entry) for entry in changeable})


async def remove_entries(context: ToolContext, entries: list[ManifestEntry]) -> Observation:
    """Take ``entries`` of one file out of it."""
    path = entries[0].path
    editor, text = editor_of(path), context.workspace.read(path) or ""
    assert editor is not None
    for entry in reversed(entries):
        text = editor.without(text, entry)
    lines = [f"{path}: removed {entry.name} {entry.version} from {entry.place}".replace("  ", " ") for entry in entries]
    lines += [f"still there: {entry.note}" for entry in entries if "features" in entry.note]
    lines += [note for entry in entries for note in _catalog_users(context.workspace, entry)]
    return await _write(context, {path: text}, lines, {_key(entry) for entry in entries})


def _key(entry: ManifestEntry) -> tuple[str, str, str]:
    return entry.path, entry.place, entry.name


def _catalog_users(workspace: Workspace, entry: ManifestEntry) -> list[str]:
    """Return a line for each script that still refers to a removed alias of a catalog."""
    section, _, alias = entry.place.partition(" ")
    if not entry.path.endswith(".versions.toml") or section not in ("[libraries]", "[plugins]"):
        return []
    catalog = PurePosixPath(entry.path).name.removesuffix(".versions.toml")
    accessor = f"{catalog}.{'plugins.' if section == '[plugins]' else ''}{alias.replace('-', '.').replace('_', '.')}"
    scripts = (path for path in manifest_paths(workspace) if ".gradle" in path)
    return [f"{path} still uses {accessor}" for path in scripts if accessor in (workspace.read(path) or "")]


async def _write(
    context: ToolContext, texts: dict[str, str], lines: list[str], changed: set[tuple[str, str, str]]
) -> Observation:
    """Check and write ``texts`` with their locks; all of them or none."""
    workspace = context.workspace
    written: dict[str, str] = dict(texts)
    for path, text in texts.items():
        editor = editor_of(path)
        assert editor is not None
        before, after = (
            [
                (_key(e), e.version)
                for e in editor.find(path, each)
                if _key(e) not in changed and "used in" not in e.note
            ]
            for each in (workspace.read(path) or "", text)
        )
        if [key for key, _ in before] != [key for key, _ in after]:
            return tool_error(f"{path} is written in a form that this tool would damage; change it with an edit")
        lock, command = _lock_of(workspace, path)
        if not lock:
            continue
        new = await _relocked(context, path, text, lock, command)
        if isinstance(new, Observation):
            return new
        written[lock] = new
        lines.append(f"{lock}: written by `{' '.join(command)}`")
    for path, text in written.items():
        await workspace.write(path, text)
    return Observation(text="\n".join(lines))


def _lock_of(workspace: Workspace, path: str) -> tuple[str, tuple[str, ...]]:
    """Return the lock of the manifest ``path``, in its folder or in the nearest one above, and its command."""
    pure = PurePosixPath(path)
    for folder in pure.parents:
        for name, command in LOCKS.get(pure.name, {}).items():
            lock = str(folder / name)
            if workspace.read(lock) is not None:
                return lock, command
    return "", ()


async def _relocked(
    context: ToolContext, path: str, text: str, lock: str, command: tuple[str, ...]
) -> str | Observation:
    """Return the lock after ``path`` has ``text``, or the error of the command that makes it."""
    if not command:
        return tool_error(f"{lock} pins this; only Gradle can write it, with --write-locks and a network")
    sandbox = await context.workspace.copy()
    try:
        await sandbox.write_file(path, text.encode())
        folder = str(PurePosixPath("/testbed") / PurePosixPath(lock).parent)
        shell = ("sh", "-c", f'command -v {command[0]} >/dev/null || exit 127; exec "$@" 2>&1', "sh", *command)
        done = await sandbox.exec(shell, timeout_s=LOCK_TIMEOUT_S, cwd=folder, env=_OFFLINE)
        if done.exit_status != 0:
            error = parse_main_error(done.stdout.decode(errors="replace"))
            reason = (
                f"{command[0]} is not in the sandbox" if done.exit_status == 127 else error.message if error else ""
            )
            return tool_error(
                f"nothing was changed, because {lock} cannot follow offline (`{' '.join(command)}`): {reason}; "
                "ask for a version that is installed here"
            )
        return (await sandbox.read_file(lock)).decode()
    finally:
        await sandbox.close()
