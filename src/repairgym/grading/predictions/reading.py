"""Predictions as the SWE-bench family writes them, read entry by entry, and their patches applied.

Reads a file of JSON lines, a JSON list, or a JSON object (instance id -> prediction); makes `Prediction` records, and a
`RejectedEntry` for each entry that cannot be graded. Guarantees: a bad entry costs no other entry; an instance with
two different patches has no prediction, because either could be meant, unless several are asked for; unknown keys are
ignored; the size and the paths of an applied patch are within the bounds of `grading.permitted`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
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


class RejectedEntry(Record):
    """An entry that is not graded."""

    kind: Literal["malformed", "duplicate", "unknown_instance", "not_built"]
    place: str
    """Its place in the file, e.g. ``line 7``, or its id."""
    instance_id: str = ""
    reason: str


class PredictionFile(Record):
    """The content of a file."""

    predictions: tuple[Prediction, ...]
    rejected: tuple[RejectedEntry, ...] = ()

    def without(self, instance_ids: Collection[str]) -> PredictionFile:
        """Return the file without the predictions for ``instance_ids``."""
        kept = tuple(each for each in self.predictions if each.instance_id not in instance_ids)
        return self.model_copy(update={"predictions": kept})


Entry = tuple[str, Prediction | RejectedEntry]
"""(place, the entry there)"""


def read_predictions(path: Path, *, has_several: bool = False) -> PredictionFile:
    """Read the predictions of ``path``; with ``has_several`` an instance may have many, which keep their order.

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
    if has_several:
        items = [item for _, item in entries]
        return PredictionFile(
            predictions=tuple(item for item in items if isinstance(item, Prediction)),
            rejected=tuple(item for item in items if isinstance(item, RejectedEntry)),
        )
    return _without_duplicates(entries)


def reject_unknown(
    file: PredictionFile, known: Collection[str], unbuilt: Mapping[str, str] | None = None
) -> PredictionFile:
    """Return ``file`` without the predictions whose instance is not among ``known``.

    ``unbuilt`` is id -> reason of instances that belong to the set, and have no certified task on this machine.
    """
    unbuilt = unbuilt or {}
    num_tasks = len(known) + len(unbuilt)
    rejected = [
        RejectedEntry(
            kind="not_built" if prediction.instance_id in unbuilt else "unknown_instance",
            place=prediction.instance_id,
            instance_id=prediction.instance_id,
            reason=unbuilt.get(prediction.instance_id)
            or f"{prediction.instance_id[:200]!r} is none of the {num_tasks} tasks",
        )
        for prediction in file.predictions
        if prediction.instance_id not in known
    ]
    gradable = tuple(prediction for prediction in file.predictions if prediction.instance_id in known)
    return PredictionFile(predictions=gradable, rejected=(*file.rejected, *rejected))


# --- forms ---------------------------------------------------------------------------------------------------------


class _Object(dict[str, Any]):
    """A JSON object that keeps repeated keys."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.pairs = pairs


def _entries(content: bytes, path: Path) -> Iterator[Entry]:
    if path.suffix == ".jsonl" or _is_lines(content):
        for number, line in enumerate(content.split(b"\n"), 1):
            place = f"line {number}"
            try:
                if line.strip():
                    yield place, _entry(json.loads(line), place)
            except (ValueError, RecursionError) as error:  # also bytes that are no UTF-8
                yield place, RejectedEntry(kind="malformed", place=place, reason=f"no JSON: {error}")
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
    """Return True when the first line with text is a prediction by itself."""
    first = next((line for line in content.split(b"\n") if line.strip()), b"")
    try:
        value = json.loads(first)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and "instance_id" in value


def _entry(value: Any, place: str, key: str = "") -> Prediction | RejectedEntry:
    if not isinstance(value, dict):
        reason = f"got a JSON {type(value).__name__}, expected an object with the keys {', '.join(KEYS)}"
        return RejectedEntry(kind="malformed", place=place, reason=reason)
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
        chosen["model_patch"] = "" if chosen["model_patch"] is None else chosen["model_patch"]  # nothing was delivered
        try:
            prediction = Prediction.model_validate(chosen, strict=True)
            prediction.model_dump_json().encode()
            return prediction
        except ValidationError as error:
            first = error.errors()[0]
            reason = f"{first['loc'][0]}: {first['msg']}"
        except ValueError as error:
            reason = f"text that is no Unicode: {error}"
    return RejectedEntry(kind="malformed", place=place, instance_id=named, reason=reason)


def _without_duplicates(entries: Iterable[Entry]) -> PredictionFile:
    rejected = [item for _, item in entries if isinstance(item, RejectedEntry)]
    placed = [(place, item) for place, item in entries if isinstance(item, Prediction)]
    distinct = Counter(prediction.instance_id for prediction in {prediction for _, prediction in placed})
    gradable: dict[str, Prediction] = {}
    for place, prediction in placed:
        name = prediction.instance_id
        if distinct[name] == 1:
            gradable[name] = prediction
        else:
            reason = f"{distinct[name]} different predictions for one instance; keep one"
            rejected.append(RejectedEntry(kind="duplicate", place=place, instance_id=name, reason=reason))
    return PredictionFile(predictions=tuple(gradable.values()), rejected=tuple(rejected))


# --- patches -------------------------------------------------------------------------------------------------------


def apply_submission(patch: str, read: ReadFile) -> dict[str, str | None]:
    """Return the files that ``patch`` changes, as they are after it (None: deleted); empty for an empty patch.

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
    # The paths are checked before any of them is looked up.
    names = [path for change in changes for path in (change.old_path, change.new_path) if path is not None]
    if reason := next(filter(None, (check_applicable({path: None}) for path in names)), ""):
        raise PatchError(reason)
    files = apply_patch(patch, read)
    if reason := check_applicable(files):
        raise PatchError(reason)
    return files
