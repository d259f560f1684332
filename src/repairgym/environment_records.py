"""The base of all records, and the records of environments: of a task, of an agent, and of what runs in them use.

Everything else imports them from `records`.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, model_serializer


class Record(BaseModel):
    """Base of all records: frozen, and an unknown field is an error."""

    __test__ = False  # pytest collects no record, whatever its name
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    def digest(self) -> str:
        """Return the SHA-256 (hex) of the canonical JSON form."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


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
