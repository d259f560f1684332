"""What the annotations of a config say: which Record a path leads to, and whether a place may be empty.

Reads type annotations only; makes nothing. Invariant: paths are written as pydantic writes error locations, so a key
of a mapping, an index of a sequence or the tag of a union member is one part.
"""

from __future__ import annotations

import difflib
import types
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Union, get_args, get_origin

from repairgym.records import Record


def is_optional(annotation: Any) -> bool:
    """True when None is one of the members of ``annotation``."""
    return types.NoneType in _members(annotation)


def nested_record(cls: type[Record], path: Sequence[int | str]) -> type[Record] | None:
    """The Record that ``path`` leads to from ``cls``; None when it leads to something else."""
    annotation: Any = cls
    for part in path:
        annotation = nested_type(annotation, part)
    records = [member for member in _members(annotation) if _is_record(member)]
    return records[0] if len(records) == 1 else None


def nested_type(annotation: Any, part: int | str) -> Any:
    """The annotation of the field, item or union member ``part`` of ``annotation``; ``Any`` when there is none."""
    found = [nested for member in _members(annotation) if (nested := _step(member, part)) is not Any]
    if not found:
        tagged = [member for member in _members(annotation) if _is_record(member) and _is_tag(member, part)]
        return tagged[0] if tagged else Any
    return found[0] if len(found) == 1 else Union[tuple(found)]  # noqa: UP007 - built at run time


def similar_key(unknown: str, valid: Sequence[str]) -> str | None:
    """The valid key that was probably meant."""
    nearest = difflib.get_close_matches(unknown, valid, n=1, cutoff=0.5)
    return nearest[0] if nearest else None


def _step(member: Any, part: int | str) -> Any:
    if _is_record(member):
        field = member.model_fields.get(str(part))
        return field.annotation if field else Any
    origin, arguments = get_origin(member), get_args(member)
    if not isinstance(origin, type) or not arguments:
        return Any
    if issubclass(origin, Mapping):
        return arguments[1]
    if origin is tuple and arguments[-1] is not Ellipsis:
        return arguments[part] if isinstance(part, int) and part < len(arguments) else Any
    return arguments[0] if isinstance(part, int) else Any


def _members(annotation: Any) -> tuple[Any, ...]:
    origin = get_origin(annotation)
    if origin is Annotated:
        return _members(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return tuple(member for argument in get_args(annotation) for member in _members(argument))
    return (annotation,)


def _is_record(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Record)


def _is_tag(record: type[Record], part: int | str) -> bool:
    literals = (get_args(field.annotation) for field in record.model_fields.values())
    return part == record.__name__ or any(part in values for values in literals)
