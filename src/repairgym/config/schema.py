"""The settings of a config class: their keys, types and sections, read from its annotations.

Sections of every member of a union are listed, and each setting of a member names the ``type`` that it needs.
"""

import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from repairgym.records import Record


class Setting(NamedTuple):
    """One key of a configuration, a section or a value."""

    key: tuple[str, ...]
    owner: type[Record]
    field: FieldInfo
    condition: str = ""
    """Choice that the key needs, e.g. ``loss.type='gspo'``; empty where the configuration at hand has the key."""

    @property
    def name(self) -> str:
        """Dotted key."""
        return ".".join(self.key)


def iter_settings(
    cls: type[Record], data: Mapping[str, Any] | None = None, path: tuple[str, ...] = (), condition: str = ""
) -> Iterator[Setting]:
    """Yield every setting of ``cls``, depth first; ``data`` says which members of unions are in use."""
    for name, field in cls.model_fields.items():
        key = (*path, name)
        yield Setting(key, cls, field, condition)
        value = (data or {}).get(name)
        section = value if isinstance(value, Mapping) else None
        members = records_of(field.annotation)
        active = active_member(members, section, field.default)
        for member in members:
            needed = condition or ("" if member is active else f"{'.'.join(key)}.type={tags_of(member)[0]!r}")
            yield from iter_settings(member, section if member is active else None, key, needed)


def active_member(
    members: Sequence[type[Record]], section: Mapping[str, Any] | None, default: object
) -> type[Record] | None:
    """Return the member of a union that ``section`` chooses by its ``type``, or that is its default."""
    if len(members) == 1:
        return members[0]
    if section and "type" in section:
        return next((member for member in members if section["type"] in tags_of(member)), None)
    return type(default) if isinstance(default, Record) else None


def tags_of(record: type[Record]) -> tuple[str, ...]:
    """Return the values of the discriminator ``type`` that choose ``record`` in a union; its class name without one."""
    field = record.model_fields.get("type")
    return (get_args(field.annotation) if field else ()) or (record.__name__,)


def is_optional(annotation: Any) -> bool:
    """Return True when None is one of the members of ``annotation``."""
    return types.NoneType in members_of(annotation)


def records_of(annotation: Any) -> list[type[Record]]:
    """Return the Records among the members of ``annotation``."""
    return [member for member in members_of(annotation) if isinstance(member, type) and issubclass(member, Record)]


def item_type(annotation: Any) -> Any:
    """Return the type of the items where every member of ``annotation`` but None is a sequence; None elsewhere."""
    members = [member for member in members_of(annotation) if member is not types.NoneType]
    origins = [get_origin(member) for member in members]
    if not members or not all(isinstance(origin, type) and issubclass(origin, (list, tuple)) for origin in origins):
        return None
    return get_args(members[0])[0]


def nested_type(annotation: Any, part: int | str) -> Any:
    """Return the annotation of the field or item ``part`` of ``annotation``; ``Any`` when there is none."""
    nested = [step for member in members_of(annotation) if (step := _step(member, part)) is not Any]
    if not nested:
        return Any
    return nested[0] if len(nested) == 1 else Union[tuple(nested)]  # noqa: UP007 - built at run time


def locate(cls: type[Record], location: Sequence[int | str]) -> tuple[tuple[int | str, ...], type[Record]]:
    """Return the key that a pydantic error location means, and the Record that holds its last part.

    Pydantic names the chosen member of a union in a location of its own; keys have no such part.
    """
    keys: list[int | str] = []
    annotation: Any = cls
    section = cls
    for part in location[:-1]:
        records = records_of(annotation)
        tagged = [record for record in records if part in (*tags_of(record), record.__name__)]
        if len(members_of(annotation)) > 1 and tagged:
            annotation = tagged[0]
        elif (nested := nested_type(annotation, part)) is not Any:
            keys.append(part)
            annotation = nested
        if len(records := records_of(annotation)) == 1:
            section = records[0]
    return (*keys, *location[-1:]), section


def members_of(annotation: Any) -> tuple[Any, ...]:
    """Return the members of a union, also of nested ones; of another annotation the annotation itself."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return members_of(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return tuple(member for argument in get_args(annotation) for member in members_of(argument))
    return (annotation,)


def _step(member: Any, part: int | str) -> Any:
    if isinstance(member, type) and issubclass(member, Record):
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
