"""Predictions as the SWE-bench family writes them, read entry by entry.

Reads a file of JSON lines, a JSON list, or a JSON object (instance id -> prediction); makes `Prediction` records, and a
`Refusal` for each entry that cannot be graded. Invariants: a bad entry costs no other entry; an instance that is
predicted twice with different patches has no prediction, because nobody can say which one is meant; keys other than the
three of the form are ignored.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from repairgym.diffs.apply import ReadFile, apply_patch
from repairgym.diffs.parse import PatchError, parse_patch
from repairgym.errors import InputError
from repairgym.grading.permitted import MAX_SUBMISSION_BYTES, check_applicable
from repairgym.records import Record

KEYS = ("instance_id", "model_name_or_path", "model_patch")


class Prediction(Record):
    """One patch for one task."""

    instance_id: str
    model_name_or_path: str
    model_patch: str
    """Unified diff against the tree that the agent sees; empty when the agent delivered none."""


class Refusal(Record):
    """An entry that is not graded."""

    kind: Literal["malformed", "duplicate", "unknown_instance"]
    place: str
    """Where it stands in the file, e.g. ``line 7``; the id where the place says nothing."""
    instance_id: str = ""
    reason: str


class PredictionFile(Record):
    """What a file holds."""

    predictions: tuple[Prediction, ...]
    refusals: tuple[Refusal, ...] = ()


Entry = tuple[str, Prediction | Refusal]
"""(place, what stands there)"""


def read_predictions(path: Path) -> PredictionFile:
    """The predictions of ``path``, by instance id.

    Raises:
        InputError: the file cannot be read, is neither JSON nor JSON lines, or holds nothing.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read the predictions {path}: {error.strerror or error}") from error
    entries = list(_entries(content, path))
    if not entries:
        raise InputError(f"{path} is empty; expected predictions with the keys {', '.join(KEYS)}")
    return _without_duplicates(entries)


def refuse_unknown(file: PredictionFile, known: Collection[str]) -> PredictionFile:
    """``file`` without the predictions whose instance is not among ``known``."""
    unknown = [one for one in file.predictions if one.instance_id not in known]
    refusals = [
        Refusal(
            kind="unknown_instance",
            place=one.instance_id,
            instance_id=one.instance_id,
            reason=f"{one.instance_id[:200]!r} is none of the {len(known)} tasks",
        )
        for one in unknown
    ]
    kept = tuple(one for one in file.predictions if one.instance_id in known)
    return PredictionFile(predictions=kept, refusals=(*file.refusals, *refusals))


# --- forms ---------------------------------------------------------------------------------------------------------


class _Object(dict[str, Any]):
    """A JSON object that still knows a key that was given twice."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.pairs = pairs


def _entries(content: bytes, path: Path) -> Iterator[Entry]:
    if path.suffix == ".jsonl" or _is_lines(content):
        for number, line in enumerate(content.split(b"\n"), 1):
            if line.strip():
                yield f"line {number}", _entry_of_line(line, f"line {number}")
        return
    try:
        whole = json.loads(content, object_pairs_hook=_Object)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is neither JSON nor JSON lines: {error}; expected a list or an object") from error
    if isinstance(whole, list):
        for number, value in enumerate(whole, 1):
            yield f"item {number}", _entry(value, f"item {number}")
    elif isinstance(whole, _Object):
        for key, value in whole.pairs:
            yield f"key {key[:200]!r}", _entry(value, f"key {key[:200]!r}", key)
    else:
        raise InputError(f"{path} holds a JSON {type(whole).__name__}, expected a list or an object of predictions")


def _is_lines(content: bytes) -> bool:
    """True when the first line with text is a prediction by itself."""
    first = next((line for line in content.split(b"\n") if line.strip()), b"")
    try:
        value = json.loads(first)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and "instance_id" in value


def _entry_of_line(line: bytes, place: str) -> Prediction | Refusal:
    try:
        return _entry(json.loads(line), place)
    except (ValueError, RecursionError) as error:  # also bytes that are no UTF-8
        return Refusal(kind="malformed", place=place, reason=f"no JSON: {error}")


def _entry(value: Any, place: str, key: str = "") -> Prediction | Refusal:
    if not isinstance(value, dict):
        reason = f"got a JSON {type(value).__name__}, expected an object with the keys {', '.join(KEYS)}"
        return Refusal(kind="malformed", place=place, reason=reason)
    fields = {"instance_id": key, **value} if key else dict(value)
    instance_id = fields.get("instance_id")
    named = instance_id if isinstance(instance_id, str) and instance_id.isprintable() else ""
    missing = [name for name in KEYS if name not in fields]
    if missing:
        reason = f"the key {missing[0]!r} is missing; expected {', '.join(KEYS)}"
    elif key and instance_id != key:
        reason = f"the key names {key[:200]!r}, the prediction {str(instance_id)[:200]!r}"
    else:
        chosen = {name: fields[name] for name in KEYS}
        if chosen["model_patch"] is None:  # what agents write that deliver nothing
            chosen["model_patch"] = ""
        try:
            found = Prediction.model_validate(chosen, strict=True)
            found.model_dump_json().encode()
            return found
        except ValidationError as error:
            first = error.errors()[0]
            reason = f"{first['loc'][0]}: {first['msg']}"
        except ValueError as error:
            reason = f"text that is no Unicode: {error}"
    return Refusal(kind="malformed", place=place, instance_id=named, reason=reason)


def _without_duplicates(entries: Iterable[Entry]) -> PredictionFile:
    refusals = [one for _, one in entries if isinstance(one, Refusal)]
    placed = [(place, one) for place, one in entries if isinstance(one, Prediction)]
    distinct = Counter(one.instance_id for one in {one for _, one in placed})
    kept: dict[str, Prediction] = {}
    for place, one in placed:
        if distinct[one.instance_id] == 1:
            kept[one.instance_id] = one
            continue
        reason = f"{distinct[one.instance_id]} different predictions for one instance; keep one"
        refusals.append(Refusal(kind="duplicate", place=place, instance_id=one.instance_id, reason=reason))
    return PredictionFile(predictions=tuple(kept.values()), refusals=tuple(refusals))


# --- patches -------------------------------------------------------------------------------------------------------


def apply_submission(patch: str, read: ReadFile) -> dict[str, str | None]:
    """The files that ``patch`` changes, as they are after it (None: deleted); empty for an empty patch.

    Raises:
        PatchError: the patch is larger than `MAX_SUBMISSION_BYTES`, is no diff, or does not apply.
    """
    num_bytes = len(patch.encode(errors="replace"))
    if num_bytes > MAX_SUBMISSION_BYTES:
        raise PatchError(f"the patch has {num_bytes} bytes, at most {MAX_SUBMISSION_BYTES} can be graded")
    if not patch.strip():
        return {}
    changes = parse_patch(patch)
    if not changes:
        raise PatchError("no diff in it: expected lines that start with 'diff --git' or '---' and '+++'")
    names = [path for one in changes for path in (one.old_path, one.new_path) if path is not None]
    # Before any of them is looked up.
    if reason := next(filter(None, (check_applicable({path: None}) for path in names)), ""):
        raise PatchError(reason)
    files = apply_patch(patch, read)
    if reason := check_applicable(files):
        raise PatchError(reason)
    return files
