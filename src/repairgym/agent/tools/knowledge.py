"""The knowledge base: past fixes, found by the words of an error and ranked by relevance and past success.

Reads and makes one SQLite file (paper A, arXiv 2510.22075: past solutions are retrieved, then ranked by relevance and
past success; its tool ``ask_for_help``, appendix A.2, asks the knowledge base and not a person). Relevance is FTS5's
BM25 relative to the best hit, success the share of episodes that were offered the fix and passed (Laplace's rule: one
pass and one failure added), both in [0, 1]. Guarantees:

- It holds fixes of training tasks only. Guarded by package, it holds none of a package with validation or test tasks
  (`add`); guarded by time, a task is offered fixes of tasks that are older than itself only (`search`).
- A task is never offered its own fix (`search`).
- Equal content gives equal answers: rollouts read, and only `repairgym knowledge add` writes.
- A file that stays locked is an error of the infrastructure, never an empty answer.

The file keeps a rollback journal and no WAL, so that readers need no write permission and network folders work.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import sqlite3
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, Self

from pydantic import Field

from repairgym.agent.tools.base import Observation, Tool, ToolContext, ToolServices, tool_error
from repairgym.agent.tools.check import describe_error
from repairgym.agent.tools.shell import cut_middle
from repairgym.config.pipeline import KnowledgeConfig, SimplifiedConfig
from repairgym.errors import ConfigError, InputError, KnowledgeUnavailableError, TaskError
from repairgym.records import MainError, Record, Task
from repairgym.tasks.logs.main_error import normalize

APPLICATION_ID = 0x4D4B4231
Guard = Literal["package", "time"]
"""Rule that keeps the answers of an evaluation out: other packages, or older tasks (paper A splits by time)."""
_GUARDS: tuple[Guard, ...] = ("package", "time")
"""By their number in the file (``user_version``)."""
_ANY_DAY = "~"
"""Sorts behind every day."""
SAMPLE_LABEL = "sample_of"
"""Label of a task that starts at another error of a task: the id of that one."""
SUCCESS_WEIGHT = 0.5
"""Share of past success in the score; the paper names both parts and no weights."""
MAX_WORDS = 64
NUM_CANDIDATES = 50
"""Hits that are ranked, the most relevant ones."""
BUSY_TIMEOUT_S = 30.0
_WORD = re.compile(r"[A-Za-z_]\w+")
_FIX = re.compile(r"(?m)^fix ([0-9a-f]{12}) ")
_SCHEMA = (
    """CREATE TABLE fixes (
        number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, task_id TEXT NOT NULL, package TEXT NOT NULL,
        document TEXT NOT NULL)""",
    # Words of an error message weigh more than words of a report, and these more than words of a patch.
    "CREATE VIRTUAL TABLE words USING fts5 (message, report, patch)",
    """CREATE TABLE offers (
        fix_id TEXT NOT NULL REFERENCES fixes (id), episode TEXT NOT NULL, is_solved INTEGER NOT NULL,
        PRIMARY KEY (fix_id, episode)) WITHOUT ROWID""",
    "CREATE TABLE held_out (package TEXT PRIMARY KEY) WITHOUT ROWID",
)
_SEARCH = """
    SELECT document, bm25(words, 4.0, 2.0, 1.0) AS rank,
        (SELECT count(*) FROM offers WHERE fix_id = fixes.id),
        (SELECT coalesce(sum(is_solved), 0) FROM offers WHERE fix_id = fixes.id)
    FROM words JOIN fixes ON fixes.number = words.rowid
    WHERE words MATCH ? AND fixes.task_id != ? AND substr(coalesce(document ->> 'created_at', ''), 1, 10) < ?
    ORDER BY rank, fixes.id LIMIT ?"""


class Fix(Record):
    """One repair that passed."""

    id: str
    """First 12 hexadecimal digits of the SHA-256 of task and patch."""
    task_id: str
    package: str
    error: MainError
    """Error of the build before the repair."""
    report: str
    patch: str
    """Unified diff against the broken state."""
    created_at: str = ""
    """Of the task."""


class RankedFix(Record):
    """A fix with the reasons for its rank."""

    fix: Fix
    relevance: float
    """BM25 relative to the best hit, in (0, 1]."""
    num_offers: int
    """Episodes that were offered the fix."""
    num_solved: int
    """Episodes among them that passed."""
    score: float


def origin_id(task: Task) -> str:
    """Return the id of the task that ``task`` is a sample of: they have one fix; its own id where it is no sample."""
    return task.labels.get(SAMPLE_LABEL, task.id)


def make_fix(task: Task, error: MainError, patch: str) -> Fix:
    """Return the record of a repair of ``task``."""
    task_id = origin_id(task)
    digest = hashlib.sha256(f"{task_id}\0{patch}".encode()).hexdigest()
    return Fix(
        id=digest[:12],
        task_id=task_id,
        package=task.provenance.package,
        error=error,
        report=task.issue,
        patch=patch,
        created_at=task.created_at,
    )


def open_knowledge(config: KnowledgeConfig) -> KnowledgeBase | None:
    """Open the knowledge base that ``config`` names; None when it names none."""
    if not config.path:
        return None
    return KnowledgeBase.open(Path(config.path), busy_timeout_s=config.busy_timeout_s)


class KnowledgeBase:
    """Past fixes in one file: `create` or `open` it, `close` it or use it as a context manager."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection
        self._lock = threading.Lock()

    @classmethod
    def create(cls, path: Path, guard: Guard = "package") -> Self:
        """Make an empty knowledge base; `InputError` if ``path`` exists, or its folder does not."""
        if path.exists() or not path.parent.is_dir():
            raise InputError(f"{path} exists or its folder does not; name a new file in a folder that exists")
        base = cls(path, _connect(path, "rwc", BUSY_TIMEOUT_S))
        with base._writing() as connection:
            marks = f"PRAGMA application_id = {APPLICATION_ID}", f"PRAGMA user_version = {_GUARDS.index(guard)}"
            for statement in (*_SCHEMA, *marks):
                connection.execute(statement)
        return base

    @classmethod
    def open(cls, path: Path, *, is_read_only: bool = True, busy_timeout_s: float = BUSY_TIMEOUT_S) -> Self:
        """Open a knowledge base.

        Raises:
            InputError: there is no such file, or it is no knowledge base.
            KnowledgeUnavailableError: it stays locked.
        """
        if not path.is_file():
            raise InputError(
                f"no knowledge base {path}; make one with: repairgym knowledge add {path} RUN --tasks TASKS"
            )
        base = cls(path, _connect(path, "ro" if is_read_only else "rw", busy_timeout_s))
        try:
            with base._reading() as connection:
                application_id = connection.execute("PRAGMA application_id").fetchone()[0]
        except sqlite3.DatabaseError:
            application_id = None
        except BaseException:
            base.close()
            raise
        if application_id != APPLICATION_ID:
            base.close()
            raise InputError(f"{path} is no knowledge base; name a file that repairgym knowledge add made")
        return base

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; safe to call twice."""
        self._connection.close()

    # --- writing ---------------------------------------------------------------------------------------------------

    def hold_out(self, packages: Collection[str]) -> None:
        """Reject fixes of ``packages`` from now on; `TaskError` if a fix of one of them is here already."""
        leaked = sorted(set(packages) & set(self.packages()))
        if leaked:
            raise TaskError(
                f"{self.path} holds fixes of {', '.join(leaked)}, which validation or test tasks come from; "
                "make a new knowledge base for these tasks"
            )
        with self._writing() as connection:
            connection.executemany("INSERT OR IGNORE INTO held_out VALUES (?)", [(name,) for name in packages])

    def add(self, fix: Fix, task: Task) -> bool:
        """Store ``fix`` of ``task``; False when it is stored already.

        Raises:
            TaskError: ``task`` is no training task, its package is held out, or time guards and it has no date.
        """
        self._require_date(task)
        if task.split != "train" or fix.package in self.held_out():
            raise TaskError(
                f"{task.id} ({task.split}) cannot enter {self.path}: an evaluation would be offered its own answers"
            )
        values = (fix.id, fix.task_id, fix.package, fix.model_dump_json())
        with self._writing() as connection:
            done = connection.execute(
                "INSERT OR IGNORE INTO fixes (id, task_id, package, document) VALUES (?, ?, ?, ?)", values
            )
            if done.rowcount == 1:
                row = (done.lastrowid, normalize(fix.error.message), fix.report, fix.patch)
                connection.execute("INSERT INTO words (rowid, message, report, patch) VALUES (?, ?, ?, ?)", row)
        return done.rowcount == 1

    def add_offer(self, fix_id: str, episode: str, *, is_solved: bool) -> None:
        """Record the offer of a fix to an episode and its outcome, once per episode. Unknown fixes are left out.

        ``episode`` names one episode of one run; runs of one configuration have the same trajectory ids.
        """
        with self._writing() as connection:
            connection.execute(
                "INSERT OR REPLACE INTO offers SELECT id, ?, ? FROM fixes WHERE id = ?",
                (episode, is_solved, fix_id),
            )

    # --- reading ---------------------------------------------------------------------------------------------------

    def search(self, text: str, task: Task | None = None, *, limit: int = 3) -> tuple[RankedFix, ...]:
        """Return the best fixes for ``text`` (an error, a question), the best first; never a fix of ``task`` itself.

        Raises:
            TaskError: guarded by package, ``task`` is no training task, and fixes of its package are here; guarded by
                time, it has no date.
            KnowledgeUnavailableError: the file stays locked.
        """
        latest = _ANY_DAY
        if task is not None and self.guard() == "time":
            self._require_date(task)
            latest = task.created_at[:10]
        elif task is not None:
            self._check_isolated(task)
        words = list(dict.fromkeys(_WORD.findall(normalize(text))))[:MAX_WORDS]
        if not words:
            return ()
        query = " OR ".join(f'"{word}"' for word in words)
        own = origin_id(task) if task else ""
        with self._reading() as connection:
            rows = connection.execute(_SEARCH, (query, own, latest, NUM_CANDIDATES)).fetchall()
        ranked = [_ranked(row, rows[0][1]) for row in rows]
        return tuple(sorted(ranked, key=lambda hit: (-hit.score, hit.fix.id))[:limit])

    def guard(self) -> Guard:
        """Return what keeps the answers of an evaluation out."""
        with self._reading() as connection:
            number: int = connection.execute("PRAGMA user_version").fetchone()[0]
        return _GUARDS[number]

    def _require_date(self, task: Task) -> None:
        if self.guard() == "time" and not task.created_at:
            raise TaskError(
                f"{task.id} has no date, and {self.path} is guarded by time; make one with: repairgym knowledge add "
                "--guard package"
            )

    def packages(self) -> dict[str, int]:
        """Return the number of fixes by package."""
        with self._reading() as connection:
            return dict(connection.execute("SELECT package, count(*) FROM fixes GROUP BY package ORDER BY package"))

    def held_out(self) -> frozenset[str]:
        """Return the packages whose fixes are rejected."""
        with self._reading() as connection:
            return frozenset(name for (name,) in connection.execute("SELECT package FROM held_out"))

    def _check_isolated(self, task: Task) -> None:
        if task.split != "train" and task.provenance.package in self.packages():
            raise TaskError(
                f"{self.path} holds fixes of {task.provenance.package}, and {task.id} is a {task.split} task: "
                "its episode would be offered answers; use a knowledge base made with these tasks (--tasks)"
            )

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                yield self._connection
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                    raise
                raise KnowledgeUnavailableError(
                    f"another process keeps {self.path} locked; let it end, then try again"
                ) from error

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._reading() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                connection.execute("ROLLBACK")
                raise


def _connect(path: Path, mode: str, busy_timeout_s: float) -> sqlite3.Connection:
    return sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}",
        uri=True,
        timeout=busy_timeout_s,
        isolation_level=None,
        check_same_thread=False,
    )


def _ranked(row: tuple[str, float, int, int], best: float) -> RankedFix:
    document, rank, num_offers, num_solved = row
    relevance, success = rank / best, (num_solved + 1) / (num_offers + 2)
    score = (1 - SUCCESS_WEIGHT) * relevance + SUCCESS_WEIGHT * success
    fix = Fix.model_validate_json(document)
    return RankedFix(fix=fix, relevance=relevance, num_offers=num_offers, num_solved=num_solved, score=score)


async def find_fixes(knowledge: KnowledgeBase | None, text: str, task: Task, limit: int) -> tuple[Fix, ...]:
    """Return the best past fixes for ``text`` (`KnowledgeBase.search`); none without a knowledge base."""
    if knowledge is None:
        return ()
    # In a thread: a locked file makes SQLite wait.
    ranked = await asyncio.to_thread(knowledge.search, text, task, limit=limit)
    return tuple(hit.fix for hit in ranked)


# --- the tool ------------------------------------------------------------------------------------------------------


class AskForHelpArguments(Record):
    """Arguments of ``ask_for_help``."""

    question: str = Field(description="words of the error, or what is to be done")


class AskForHelpTool(Tool[AskForHelpArguments]):
    """``ask_for_help``: past fixes of similar errors."""

    name = "ask_for_help"
    usage = "ask_for_help QUESTION - show past fixes of similar errors"

    def __init__(self, services: ToolServices) -> None:
        """Open the knowledge base of the pipeline; `ConfigError` if the pipeline has none."""
        super().__init__(services)
        config = services.config
        if not isinstance(config, SimplifiedConfig):
            raise ConfigError(
                f"the tool {self.name} needs a pipeline with a knowledge base, of type full or simplified; "
                f"this one is of type {config.type}"
            )
        self._knowledge = open_knowledge(config.knowledge)
        self._num_fixes = config.knowledge.num_fixes

    def read(self, text: str) -> AskForHelpArguments:
        """Read the text as the question."""
        return AskForHelpArguments(question=text)

    async def run(self, context: ToolContext, arguments: AskForHelpArguments) -> Observation:
        """Return the best fixes, the best first; `KnowledgeUnavailableError` if the knowledge base stays locked."""
        if not arguments.question.strip():
            return tool_error(f"usage: {self.usage}")
        fixes = await find_fixes(self._knowledge, arguments.question, context.task, self._num_fixes)
        text = "\n\n".join(map(describe_fix, fixes)) or "no past fix has these words"
        return Observation(text=cut_middle(text, self.services.config.max_observation_chars))


def describe_fix(fix: Fix) -> str:
    """Return error and patch of a fix, as agents read it."""
    return f"fix {fix.id} of {fix.package}: {describe_error(fix.error)}\n{fix.patch.rstrip()}"


def changed_lines(patch: str) -> list[str]:
    """Return the removed and added lines of ``patch``."""
    return [line for line in patch.splitlines() if line[:1] in ("+", "-") and line[:3] not in ("+++", "---")]


def described_fixes(observation: str) -> tuple[str, ...]:
    """Return the ids of the fixes in an answer of the tool."""
    return tuple(_FIX.findall(observation))
