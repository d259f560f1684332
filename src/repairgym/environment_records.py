"""The base of all records, and the records of environments: of a task, its test runner, an agent, and what runs use.

Everything else imports them from `records`.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import itertools
import json
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    GetJsonSchemaHandler,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema


class Record(BaseModel):
    """Base of all records: frozen, and an unknown field is an error."""

    __test__ = False  # pytest collects no record, whatever its name
    model_config = ConfigDict(frozen=True, extra="forbid")

    def digest(self) -> str:
        """Return the SHA-256 (hex) of the canonical JSON form."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    @classmethod
    def attribute_docs(cls) -> dict[str, str]:
        """Return the docstrings of the fields, from the source: too dear for the start of every process."""
        docs: dict[str, str] = {}
        for parent in reversed(cls.__mro__):
            if issubclass(parent, Record):
                docs |= _docs_of_classes(parent.__module__).get(parent.__name__, {})
        return {name: text for name, text in docs.items() if name in cls.model_fields}

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        described = handler(schema)
        properties = handler.resolve_ref_schema(described).get("properties", {})
        for name, text in cls.attribute_docs().items():
            if name in properties:
                properties[name].setdefault("description", text)
        return described


@cache
def _docs_of_classes(module: str) -> dict[str, dict[str, str]]:
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (OSError, TypeError):  # no source, as in an interpreter's prompt
        return {}
    return {node.name: dict(_docs_of_fields(node)) for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}


def _docs_of_fields(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, text in itertools.pairwise(node.body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            value = text.value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield field.target.id, inspect.cleandoc(value.value)


class ImageEnvironment(Record):
    """The part of a container image that a task uses; the image itself is in the layer store."""

    name: str
    """Name by which the image was pulled."""
    image_id: str
    """SHA-256 (hex) of its configuration, which names its layers."""
    folder: str
    """Folder of the image whose ``bin`` comes first on the PATH; ``/``: the image's own PATH."""
    repository: str = "/testbed"
    """Folder of the image that holds the repository; the task's tree takes its place."""


class Environment(BaseModel):
    """A pinned set of packages in which a task's tests run.

    Strict like a :class:`Record`, but not one: its ``digest`` addresses the built environment, not the JSON form.
    """

    model_config = Record.model_config

    lock: str
    """``requirements.txt`` text with versions and hashes."""
    python: str
    """Full version of the interpreter, e.g. ``3.11.7``."""
    digest: str
    """Content address: SHA-256 over lock, python and platform, or over `image`."""
    image: ImageEnvironment | None = None
    """None: a layer of its own. Then it is absent from the JSON form, so that digests of older tasks stay."""

    @model_serializer(mode="wrap")
    def _without_no_image(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in serialize(self).items() if value is not None}


class MeasuredUse(Record):
    """The most that the runs of a certificate used, and the bounds that its task needs, with a margin."""

    peak_memory_bytes: int
    disk_bytes: int
    memory_limit_bytes: int
    disk_limit_bytes: int


class TestRunner(Record):
    """Program that runs the tests, and the channel of their outcomes."""

    type: Literal[
        "pytest", "own_pytest", "unittest", "django", "sympy", "tape", "mocha", "node_test", "vitest", "jest",
        "junit_xml", "exit_code", "log",
    ] = "pytest"  # fmt: skip
    """All but the last three write signed records (``own_pytest``: pytest of the tree itself). These are a command
    decided by its report, its exit status or, through `parser`, its log; code under test can forge them."""
    command: tuple[str, ...] = ()
    """Command of the unsigned ones; with ``{test}`` (``exit_code`` only) it runs once per test id."""
    parser: Literal["", "pytest", "unittest", "sympy"] = ""
    report_path: str = ""
    """Path of the report of ``junit_xml``, relative to the repository root."""
    settings: tuple[tuple[str, str], ...] = ()
    """pytest: settings of the repository that decide; absent from the JSON form when empty, so that digests stay."""

    @model_validator(mode="after")
    def _fits_its_type(self) -> TestRunner:
        own = {"junit_xml": (True, False), "log": (False, True)}.get(self.type, (False, False))
        if bool(self.command) == self.is_signed or (bool(self.report_path), bool(self.parser)) != own:
            raise ValueError(f"runner {self.type!r}: unsigned: a command; junit_xml: a report_path; log: a parser")
        if self.type != "exit_code" and "{test}" in " ".join(self.command):
            raise ValueError(f"runner {self.type!r} runs one command for all tests; '{{test}}' is of 'exit_code'")
        if self.settings and self.type not in ("pytest", "own_pytest"):
            raise ValueError(f"runner {self.type!r} reads no settings of pytest")
        return self

    @property
    def is_signed(self) -> bool:
        """True when outcomes leave as records that only the grader's runner can write."""
        return self.type not in ("junit_xml", "exit_code", "log")

    @property
    def is_node(self) -> bool:
        """True for the test frameworks of JavaScript, which run in node."""
        return self.type in ("tape", "mocha", "node_test", "vitest", "jest")

    @model_serializer(mode="wrap")
    def _without_no_settings(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in serialize(self).items() if value or name != "settings"}


class AgentRun(Record):
    """The end of an external agent's program, and counts of its requests to the gateway."""

    exit_status: int | None
    """None: killed by a signal or at the time limit."""
    signal: int | None = None
    is_timed_out: bool = False
    stdout_tail: str = ""
    stderr_tail: str = ""
    num_answers: int = 0
    num_forks: int = 0
    """Conversations that did not continue the latest answer; each is a branch of the ledger."""
    num_spliced_answers: int = 0
    """Answers whose sampled ids were copied into a history that the agent had rewritten."""
    num_foreign_answers: int = 0
    """Messages of the assistant that no policy sampled: the agent wrote or changed them."""
    edits: tuple[str, ...] = ()
    """Changes of the agent to arguments of sampled calls before it sent them back, one line for each."""
