"""The pre-training corpus: functions of installed, pinned packages and of the standard library.

Reads the Python files of named distributions; makes `CorpusFunction` records and a manifest with digests. Invariants:
vendored copies and tests are left out, equal functions appear once, and a function whose text equals one of a held-out
package (`held_out`) never appears.
"""

import gzip
import hashlib
import json
import multiprocessing
import sysconfig
import warnings
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from importlib import metadata
from itertools import chain
from pathlib import Path
from typing import Any

from repairgym.agent.tools.window import docstring_lines
from repairgym.errors import InputError
from repairgym.process_pool import end_with_parent
from repairgym.tasks.mutation.operators import FunctionSpan, Site, find_functions, find_sites

SKIPPED_PARTS = frozenset(
    {"_vendor", "vendored", "_vendored", "vendor", "extern", "tests", "test", "testing", "idlelib", "lib2to3"}
    | {"site-packages", "turtledemo", "ensurepip", "__pycache__", "externals"}
)
MAX_CODE_LINES = 28
MIN_CODE_LINES = 3
MAX_CHARS = 1400
MAX_LINE_CHARS = 110
MAX_FILE_BYTES = 200_000


@dataclass(frozen=True)
class CorpusFunction:
    """A function with its docstring folded away; site lines are 1-based into ``lines``."""

    path: str
    name: str
    lines: tuple[str, ...]
    sites: tuple[Site, ...]

    @property
    def text(self) -> str:
        """Source without the docstring."""
        return "\n".join(self.lines) + "\n"


def function_digest(lines: Iterable[str]) -> str:
    """SHA-256 (hex) of a function's text without white space: equal for copies that differ in formatting only."""
    return hashlib.sha256("".join("".join(line.split()) for line in lines).encode()).hexdigest()


def distribution_files(name: str) -> list[tuple[str, Path]]:
    """(relative name, path) of the Python files of an installed distribution, or of ``stdlib``.

    Raises:
        importlib.metadata.PackageNotFoundError: the distribution is not installed.
    """
    if name == "stdlib":
        root = Path(sysconfig.get_paths()["stdlib"])
        paths = [(str(path.relative_to(root)), path) for path in sorted(root.rglob("*.py"))]
    else:
        files = metadata.distribution(name).files or []
        paths = sorted((str(file), Path(str(file.locate()))) for file in files if file.suffix == ".py")
    return [(relative, path) for relative, path in paths if not SKIPPED_PARTS & set(Path(relative).parts)]


def corpus_functions(
    files: Iterable[tuple[str, Path]], excluded_digests: frozenset[str], seen: set[str], *, num_workers: int = 1
) -> Iterator[CorpusFunction]:
    """Functions of ``files`` (relative name, path), in their order, that are new to ``seen`` and not excluded.

    ``seen`` grows by their digests; ``num_workers`` processes read and parse.
    """
    with ExitStack() as stack:
        functions: Iterable[list[CorpusFunction]] = map(_file_functions, files)
        if num_workers > 1:
            spawning = multiprocessing.get_context("spawn")
            pool = ProcessPoolExecutor(num_workers, spawning, end_with_parent)
            executor = stack.enter_context(pool)
            functions = executor.map(_file_functions, files, chunksize=8)
        for function in chain.from_iterable(functions):
            digest = function_digest(function.lines)
            if digest not in seen and digest not in excluded_digests:
                seen.add(digest)
                yield function


def _file_functions(file: tuple[str, Path]) -> list[CorpusFunction]:
    """All functions of a file that fit; none of a file that cannot be read or parsed."""
    relative, path = file
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            return []
        source = path.read_text(encoding="utf-8")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            spans, sites, folded = find_functions(source), find_sites(source), docstring_lines(source)
    except (SyntaxError, ValueError, OSError, RecursionError):
        return []
    lines = source.splitlines()
    functions = (_make_function(relative, span, sites, lines, folded) for span in spans)
    return [function for function in functions if function is not None]


def _make_function(
    relative: str, span: FunctionSpan, sites: list[Site], lines: list[str], folded: frozenset[int]
) -> CorpusFunction | None:
    numbers = [n for n in range(span.first_line, span.last_line + 1) if n not in folded and lines[n - 1].strip()]
    if not MIN_CODE_LINES <= len(numbers) <= MAX_CODE_LINES:
        return None
    text = [lines[n - 1] for n in numbers]
    if sum(map(len, text)) > MAX_CHARS or max(map(len, text)) > MAX_LINE_CHARS:
        return None
    place = {n: k for k, n in enumerate(numbers, 1)}
    inside = [
        Site(site.operator, place[site.line], site.column, site.old, site.alternatives)
        for site in sites
        if site.line in place
    ]
    return CorpusFunction(relative, span.qualified_name, tuple(text), tuple(inside)) if inside else None


def save_functions(functions: Iterable[CorpusFunction], path: Path) -> None:
    """Write functions as gzipped JSON lines; equal functions give equal bytes."""
    with path.open("wb") as file, gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=0) as packed:
        for function in functions:
            packed.write(json.dumps(asdict(function)).encode() + b"\n")


def load_functions(path: Path) -> list[CorpusFunction]:
    """Read the functions of `save_functions`.

    Raises:
        InputError: the file cannot be read.
    """
    try:
        with gzip.open(path, "rt", encoding="utf-8") as rows:
            return [_function_of(json.loads(row)) for row in rows]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path} is no file of functions ({error}); expected one that `repairgym train functions` wrote"
        ) from error


def _function_of(row: dict[str, Any]) -> CorpusFunction:
    sites = tuple(Site(**{**site, "alternatives": tuple(site["alternatives"])}) for site in row["sites"])
    return CorpusFunction(row["path"], row["name"], tuple(row["lines"]), sites)
