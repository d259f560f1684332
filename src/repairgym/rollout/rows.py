"""Light rows of ``run.db``, and the two blobs of a trajectory.

Reads and makes column values. Invariants: `unpack_ledger(pack_ledger(x))` equals x bit for bit; `documents` hold
everything of a trajectory but its tokens, so that analysis never reads a ledger.
"""

import json
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from repairgym.errors import InputError
from repairgym.ledger import Branch, Parent, TokenLedger
from repairgym.records import AgentRun, Attempt, Record, StopReason, Trajectory, Turn, Verdict, VerdictKind

_BYTES_PER_TOKEN = 12
"""int32 id, float32 log-probability, int32 policy version; the action flags follow, one bit each, then the branches of
a forked history as JSON."""


class TrajectoryRow(Record):
    """One trajectory without its text and tokens."""

    id: str
    phase: str
    step: int
    group_id: str
    task_id: str
    split: str
    policy_id: str
    verdict: VerdictKind
    reason: str
    is_restored: bool | None
    reward: float | None
    """None when the verdict is invalid: an infrastructure failure has no reward."""
    stop_reason: StopReason
    seed: int
    num_turns: int
    num_tokens: int
    num_action_tokens: int
    durations_s: dict[str, float]
    created_at: str


class PhaseRow(Record):
    """One phase of a run."""

    name: str
    status: str
    """``planned``, ``running``, ``done``, ``failed`` or ``interrupted``."""
    started_at: str | None = None
    ended_at: str | None = None
    wall_s: float = 0.0
    """Seconds in which the phase ran, over all its resumptions; a killed one counts up to its last note."""
    cpu_s: float = 0.0
    peak_rss_bytes: int = 0
    """Memory of all processes at its peak (`TreeUsage`)."""
    detail: dict[str, Any] = {}


class GroupRow(Record):
    """One group: the trajectories of one task that are compared with each other."""

    id: str
    phase: str
    step: int
    task_id: str
    status: str


class Event(Record):
    """Something worth telling that happened in a run."""

    time: str
    phase: str
    kind: str
    message: str


@dataclass(frozen=True)
class Document:
    """The text side of a trajectory: all of it but the token ledger."""

    pipeline: str
    sandbox_backend: str
    turns: tuple[Turn, ...]
    attempts: tuple[Attempt, ...]
    verdict: Verdict
    final_files: dict[str, str | None]
    final_patch: str
    schema_version: int
    agent_run: AgentRun | None = None


def pack_document(trajectory: Trajectory) -> bytes:
    """JSON of everything but ids and tokens, zlib-compressed (whole files compress about fivefold)."""
    content = {
        "pipeline": trajectory.pipeline,
        "sandbox_backend": trajectory.sandbox_backend,
        "attempts": [attempt.model_dump(mode="json") for attempt in trajectory.attempts],
        "turns": [turn.model_dump(mode="json") for turn in trajectory.turns],
        "verdict": trajectory.verdict.model_dump(mode="json"),
        "final_files": trajectory.final_files,
        "final_patch": trajectory.final_patch,
        "schema_version": trajectory.schema_version,
    }
    if trajectory.agent_run is not None:
        content["agent_run"] = trajectory.agent_run.model_dump(mode="json")
    return zlib.compress(json.dumps(content, separators=(",", ":")).encode(), level=1)


def unpack_document(blob: bytes) -> Document:
    """Return what `pack_document` packed; `InputError` if the blob is damaged or of an unknown schema."""
    try:
        content = json.loads(zlib.decompress(blob))
        content["turns"] = tuple(Turn.model_validate(turn) for turn in content["turns"])
        content["attempts"] = tuple(Attempt.model_validate(attempt) for attempt in content["attempts"])
        content["verdict"] = Verdict.model_validate(content["verdict"])
        if "agent_run" in content:
            content["agent_run"] = AgentRun.model_validate(content["agent_run"])
        return Document(**content)
    except (zlib.error, ValueError, KeyError, TypeError) as error:
        raise InputError(f"a stored trajectory cannot be read ({' '.join(str(error).split())[:200]})") from error


def pack_ledger(ledger: TokenLedger) -> bytes:
    """The four arrays, little-endian, one after the other, and the branches; zlib-compressed."""
    parts = (
        ledger.token_id.astype("<i4").tobytes(),
        ledger.log_prob.astype("<f4").tobytes(),
        ledger.policy_version.astype("<i4").tobytes(),
        np.packbits(ledger.is_action.astype(bool)).tobytes(),
        json.dumps([[branch.start, branch.spans] for branch in ledger.branches]).encode() if ledger.branches else b"",
    )
    return len(ledger).to_bytes(4, "little") + zlib.compress(b"".join(parts), level=1)


def unpack_ledger(blob: bytes) -> TokenLedger:
    """Inverse of :func:`pack_ledger`."""
    length = int.from_bytes(blob[:4], "little")
    raw = zlib.decompress(blob[4:])
    num_flag_bytes = -(-length // 8)
    flags = np.frombuffer(raw, np.uint8, num_flag_bytes, offset=length * _BYTES_PER_TOKEN)
    branches = json.loads(raw[length * _BYTES_PER_TOKEN + num_flag_bytes :] or b"[]")
    return TokenLedger(
        token_id=np.frombuffer(raw, "<i4", length).astype(np.int32),
        is_action=np.unpackbits(flags, count=length).astype(bool),
        log_prob=np.frombuffer(raw, "<f4", length, offset=4 * length).astype(np.float32),
        policy_version=np.frombuffer(raw, "<i4", length, offset=8 * length).astype(np.int32),
        branches=tuple(Branch(start, tuple((first, last) for first, last in spans)) for start, spans in branches),
    )


def join_trajectory(
    row: TrajectoryRow, document: Document, ledger: TokenLedger, parent: Parent | None = None
) -> Trajectory:
    """The trajectory that was stored."""
    return Trajectory(
        id=row.id,
        task_id=row.task_id,
        group_id=row.group_id,
        pipeline=document.pipeline,
        policy_id=row.policy_id,
        sandbox_backend=document.sandbox_backend,
        turns=document.turns,
        attempts=document.attempts,
        ledger=ledger,
        stop_reason=row.stop_reason,
        final_files=document.final_files,
        final_patch=document.final_patch,
        verdict=document.verdict,
        seed=row.seed,
        durations_s=row.durations_s,
        agent_run=document.agent_run,
        parent=parent,
        schema_version=document.schema_version,
    )
