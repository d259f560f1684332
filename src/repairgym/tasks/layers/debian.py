"""Packages of Debian: the toolchain of Java builds, and source archives.

Reads names and versions through the user's `apt`. Makes locks (one line for each binary package, with version and
SHA-256), folders with the files of a lock, and the upstream archive of a source package. Guarantees: a file has the
pinned SHA-256; no script of a package runs, and nothing is installed on the machine; links that lead to the root of a
system lead into the folder. What the archive does not have is a `PackageNotFoundError`, an apt that fails otherwise an
`IndexUnavailableError`.
"""

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from repairgym.errors import IndexUnavailableError, PackageNotFoundError
from repairgym.tasks.layers.gradle_home import move_gradle, moved_parts
from repairgym.tasks.layers.package_index import Sdist, sha256_of

if TYPE_CHECKING:  # which reads source archives by this module
    from repairgym.tasks.layers.store import LayerStore

DEBIAN_HEAD = "# debian: files of these below toolchain/\n"
"""First line of the part of a lock that names packages of Debian."""
JAVA_TOOLS = (
    "openjdk-17-jdk-headless", "maven", "libmaven-compiler-plugin-java", "libmaven-resources-plugin-java",
    "junit4", "junit5", "libhamcrest-java",
)  # fmt: skip
"""Needs of Maven builds, with Debian's Maven repository for what they depend on."""
GRADLE_TOOLS = ("openjdk-17-jdk-headless", "gradle", "junit4", "libhamcrest-java")
"""Needs of Gradle builds."""
_TIMEOUT_S = 600.0
_DEPENDS = (
    "depends", "--recurse", "--no-recommends", "--no-suggests", "--no-conflicts", "--no-breaks", "--no-replaces",
    "--no-enhances",
)  # fmt: skip
_JAVA_ENDS = ("-jni", "-native-java")
_JDK = ("openjdk-17-jre-headless", "openjdk-17-jdk-headless")
_RUNTIMES = ("openjdk-", "default-j", "java-wrappers")
_UNUSED = ("usr/share/doc", "usr/share/man", "usr/share/lintian", "usr/lib/jvm/*/jmods", "usr/share/javadoc")
_KNOWN_MISSES = ("Unable to locate", "was not found", "Unable to find", "Can't find", "E: Can't select")


class Deb(NamedTuple):
    """A pinned binary package."""

    name: str
    version: str
    sha256: str


def read_debs(part: str) -> tuple[Deb, ...]:
    """Read the lines after `DEBIAN_HEAD`: ``name=version --hash=sha256:...``."""
    matches = (re.fullmatch(r"([^=]+)=(\S+) --hash=sha256:(\w+)", line) for line in part.splitlines())
    return tuple(Deb(*match.group(1, 2, 3)) for match in matches if match)


def resolve_debs(names: Sequence[str]) -> str:
    """Return the lock of ``names`` and of the Java packages that they depend on, in the versions of the user's apt."""
    told = _apt("apt-cache", [*_DEPENDS, *names])
    closure = sorted({line for line in told.splitlines() if re.fullmatch(r"[a-z0-9][a-z0-9+.-]+", line)})
    lines = (f"{deb.name}={deb.version} --hash=sha256:{deb.sha256}\n" for deb in _described(closure))
    return DEBIAN_HEAD + "".join(lines)


def _described(names: Sequence[str]) -> Iterator[Deb]:
    """Yield the newest version of each of ``names`` that belongs to Java."""
    for text in _apt("apt-cache", ["show", "--no-all-versions", *names]).split("\n\n"):
        fields = dict(re.findall(r"^(Package|Version|SHA256|Section): (.+)$", text, re.MULTILINE))
        name = fields.get("Package", "")
        is_java = name.endswith(_JAVA_ENDS) or fields.get("Section", "").endswith("java")
        if name and is_java and (name.startswith(_JDK) or not name.startswith(_RUNTIMES)):
            yield Deb(name, fields["Version"], fields["SHA256"])


def install_debs(place: Path, debs: Sequence[Deb]) -> None:
    """Unpack ``debs`` below ``place``."""
    folder = place.with_name(f"{place.name}.debs")
    folder.mkdir(parents=True)
    try:
        _apt("apt-get", ["download", *(f"{deb.name}={deb.version}" for deb in debs)], folder)
        files = {path.name.split("_")[0]: path for path in folder.glob("*.deb")}
        for deb in debs:
            got = sha256_of(files[deb.name]) if deb.name in files else "nothing"
            if got != deb.sha256:
                raise PackageNotFoundError(
                    f"apt serves {deb.name}={deb.version} as {got}, the lock pins {deb.sha256}; use the archive's "
                    "version of that day, or resolve the lock again"
                )
            _apt("dpkg-deb", ["-x", str(files[deb.name]), str(place)])
    finally:
        shutil.rmtree(folder)
    for pattern in _UNUSED:
        for path in place.glob(pattern):
            shutil.rmtree(path)
    make_links_relative(place)
    if has_gradle(debs):
        move_gradle(place)


def has_gradle(debs: Sequence[Deb]) -> bool:
    """Return True when Gradle is among ``debs``."""
    return any(deb.name == "gradle" for deb in debs)


def add_toolchain(place: Path, debs: Sequence[Deb], store: "LayerStore") -> None:
    """Add the files of ``debs`` below ``toolchain`` of the environment ``place``, and programs of Java in its ``bin``.

    ``mvn`` and ``gradle`` are offline there and read the toolchain's Maven repository.
    """
    layer = store.build_once("toolchains", debs_digest(debs), lambda folder: install_debs(folder, debs))
    shutil.copytree(layer, place / "toolchain", copy_function=os.link, symlinks=True)
    for name, text in toolchain_scripts(debs).items():
        target = place / "bin" / name
        target.write_text(text, encoding="utf-8")
        target.chmod(0o755)


def toolchain_scripts(debs: Sequence[Deb]) -> dict[str, str]:
    """Return program -> script that starts it in a test run."""
    folder = resources.files("repairgym") / "data" / "java"
    names = ("java", "javac", "gradle" if has_gradle(debs) else "mvn")
    return {name: folder.joinpath(f"{name}.sh").read_text("utf-8") for name in names}


def toolchain_texts(debs: Sequence[Deb]) -> list[str]:
    """Return what an environment holds beyond the files of ``debs``."""
    return [*toolchain_scripts(debs).values(), *(moved_parts() if has_gradle(debs) else ())]


def make_links_relative(place: Path) -> None:
    """Lead the absolute links below ``place`` to where they lead in a system that has its root there."""
    for path in (Path(folder) / name for folder, folders, files in os.walk(place) for name in (*folders, *files)):
        if path.is_symlink() and (target := os.readlink(path)).startswith("/"):
            path.unlink()
            path.symlink_to(os.path.relpath(place / target.lstrip("/"), path.parent))


class DebianArchive:
    """Source packages of the user's apt, also where it has no sources enabled; an index of archives (`SdistIndex`)."""

    def fetch(self, sdist: Sdist, folder: Path) -> Path:
        """Download the upstream archive of ``sdist`` into ``folder`` and verify it (see `SdistIndex.fetch`)."""
        folder.mkdir(parents=True, exist_ok=True)
        own = folder / "apt"
        try:
            options = _source_options(own)
            _apt("apt-get", [*options, "-q", "--error-on=any", "update"], folder)
            _apt("apt-get", [*options, "-q", "source", "--tar-only", f"{sdist.name}={sdist.version}"], folder)
        finally:
            shutil.rmtree(own, ignore_errors=True)
        path = next(folder.glob("*.orig.tar.*[!c]"), None)
        got = sha256_of(path) if path else "nothing"
        if path is None or f"debian-{got}" != sdist.sha256:
            raise PackageNotFoundError(
                f"apt serves {sdist.name}={sdist.version} as {got}, the catalogue pins {sdist.sha256}; correct it"
            )
        for other in folder.iterdir():
            if other != path:
                other.unlink()
        return path


def _source_options(own: Path) -> list[str]:
    """Return apt's options for lists below ``own``, with the sources of each binary entry of the user's."""
    lists, parts = own / "lists", own / "parts"  # apt removes what it does not know from its lists
    (lists / "partial").mkdir(parents=True)
    parts.mkdir()
    entries: list[str] = []
    for path in (Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*"))):
        if path.suffix not in (".list", ".sources") or not path.is_file():
            continue
        text = path.read_text(encoding="utf-8")
        if "/debian" not in text:  # of another archive
            continue
        entries += [re.sub(r"^deb ", "deb-src ", line) for line in text.splitlines() if line.startswith("deb ")]
        if path.suffix == ".sources":
            sources = re.sub(r"^Types:.*$", "Types: deb-src", text, flags=re.MULTILINE)
            (parts / path.name).write_text(sources, encoding="utf-8")
    (parts / "own.list").write_text("\n".join(entries) + "\n", encoding="utf-8")
    settings = {
        "Dir::Etc::sourcelist": parts / "none.list", "Dir::Etc::sourceparts": parts, "Dir::State::lists": lists,
        "APT::Sandbox::User": "root",
    }  # fmt: skip
    return [part for name, value in settings.items() for part in ("-o", f"{name}={value}")]


def _apt(program: str, arguments: Sequence[str], cwd: Path | None = None) -> str:
    if shutil.which(program) is None:
        raise IndexUnavailableError(f"there is no {program} here, which builds of Java tasks need")
    environment = {**os.environ, "LC_ALL": "C.UTF-8"}
    try:
        done = subprocess.run(
            [program, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S
        )
    except subprocess.TimeoutExpired as error:
        raise IndexUnavailableError(f"{program} did not end within {_TIMEOUT_S:g} s; try again later") from error
    if done.returncode == 0:
        return done.stdout
    detail = " ".join(done.stderr.split())[:600]
    kind = PackageNotFoundError if any(text in detail for text in _KNOWN_MISSES) else IndexUnavailableError
    what = next((part for part in arguments if part in ("download", "source", "update", "depends", "show")), "")
    raise kind(f"{program} {what} failed: {detail}")


def debs_digest(debs: Sequence[Deb]) -> str:
    """Return the content address of the folder of ``debs``."""
    parts = [*(f"{deb.sha256}\n" for deb in debs), *(moved_parts() if has_gradle(debs) else ())]
    return hashlib.sha256("".join(parts).encode()).hexdigest()
