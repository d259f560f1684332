"""Configuration files: reads TOML and `a.b=value` overrides, makes frozen Records and writes them back.

Invariants: every key of the file and of the overrides is a field of the Record, every value has the type of its field
(no silent conversion), and ``load_config(cls, write(to_toml(config)), ())`` equals ``config``. TOML has no null: the
string ``"none"`` means *not set* wherever a field may be None.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from repairgym.config.schema import is_optional, nested_record, nested_type, similar_key
from repairgym.errors import ConfigError, InputError
from repairgym.records import Record

ConfigT = TypeVar("ConfigT", bound=Record)
NOT_SET = "none"


def load_config(cls: type[ConfigT], file: Path | None = None, overrides: Sequence[str] = ()) -> ConfigT:
    """A ``cls`` from its defaults, then ``file``, then ``overrides``, each winning over the one before, key by key.

    Args:
        cls: The Record to make; its fields may be Records.
        file: A TOML file, or None for the defaults alone.
        overrides: ``key=value`` or ``section.key=value``; the value is read as TOML, and as a plain string where it is
            not TOML (``optimizer.type=muon``, ``optimizer.betas=[0.9, 0.95]``).

    Raises:
        InputError: ``file`` cannot be read.
        ConfigError: a syntax error, an unknown key (the nearest key and all keys of the section are named) or a value
            of the wrong type (what was got and what is expected are named).
    """
    data = _read_toml(file) if file else {}
    for override in overrides:
        _apply_override(data, override)
    data = _completed(_with_nulls(data, cls), cls)
    try:
        return cls.model_validate_json(json.dumps(data, default=str), strict=True)
    except ValidationError as error:
        origin = f"{file}: " if file else ""
        raise ConfigError(origin + "; ".join(_explain(cls, data, detail) for detail in error.errors())) from None


def to_toml(config: Record) -> str:
    """``config`` as TOML with every field, so that a run folder says all that a run used."""
    return "\n".join(_table_lines(config.model_dump(mode="python"), ())).lstrip("\n") + "\n"


def flatten(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """(dotted key, value) of each setting."""
    for key, value in config.items():
        name = f"{prefix}.{key}" if prefix else key
        if isinstance(value, Mapping):
            yield from flatten(value, name)
        else:
            yield name, value if isinstance(value, str) else json.dumps(value, default=str)


# --- reading -------------------------------------------------------------------------------------------------------


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read the configuration {file}: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not TOML: {error}") from error


def _apply_override(data: dict[str, Any], override: str) -> None:
    key, separator, text = override.partition("=")
    parts = [part.strip() for part in key.split(".")]
    if not separator or not all(parts):
        raise ConfigError(f"got the override {override!r}, expected key=value or section.key=value")
    section = data
    for depth, part in enumerate(parts[:-1], start=1):
        section = section.setdefault(part, {})
        if not isinstance(section, dict):
            raise ConfigError(f"{override!r} looks into {'.'.join(parts[:depth])!r}, which is a value, not a section")
    section[parts[-1]] = _parse_value(text.strip())


def _parse_value(text: str) -> Any:
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return parsed["value"] if len(parsed) == 1 else text


def _with_nulls(value: Any, annotation: Any) -> Any:
    """``value`` with None for each ``"none"`` that stands where ``annotation`` allows None."""
    if value == NOT_SET and is_optional(annotation):
        return None
    if isinstance(value, dict):
        return {key: _with_nulls(item, nested_type(annotation, key)) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_nulls(item, nested_type(annotation, index)) for index, item in enumerate(value)]
    return value


def _completed(data: Mapping[str, Any], source: type[Record] | Record) -> dict[str, Any]:
    """``data`` where each section that it names in part has its other keys from the section's own default.

    The default of a section belongs to the Record that holds it: `DemoConfig` has other RL sizes than `RlConfig`.
    """
    completed = dict(data)
    owner = source if isinstance(source, Record) else None
    cls = type(source) if isinstance(source, Record) else source
    for name, field in cls.model_fields.items():
        default = getattr(owner, name) if owner else field.get_default(call_default_factory=True)
        given = data.get(name)
        if isinstance(default, Record) and isinstance(given, dict) and _is_same_type(given, default):
            completed[name] = _completed(given, default)
        elif owner and name not in data:
            completed[name] = owner.model_dump(mode="json", include={name})[name]
    return completed


def _is_same_type(given: Mapping[str, Any], default: Record) -> bool:
    """False where ``given`` chooses another member of a union than the default, by its ``type``."""
    return "type" not in type(default).model_fields or given.get("type", default.type) == default.type  # type: ignore[attr-defined]


# --- explaining ----------------------------------------------------------------------------------------------------


def _explain(cls: type[Record], data: Mapping[str, Any], detail: ErrorDetails) -> str:
    location = detail["loc"]
    key = ".".join(str(part) for part in location) or cls.__name__
    match detail["type"]:
        case "extra_forbidden":
            return _explain_unknown(cls, location)
        case "missing":
            return f"{key} is missing; set it in the file or with {key}=VALUE"
        case "value_error" | "assertion_error":
            return f"{key}: {detail['msg'].partition(', ')[2] or detail['msg']}"
    got = json.dumps(detail["input"], default=str)
    hint = f"; write {key}='\"{got}\"' for text" if detail["type"] == "string_type" else ""
    return f"{key}: got {got} ({_toml_type(detail['input'])}), expected: {_expectation(detail)}{hint}"


def _explain_unknown(cls: type[Record], location: tuple[int | str, ...]) -> str:
    *path, unknown = location
    section = nested_record(cls, path) or cls
    name = ".".join(str(part) for part in path)
    valid = sorted(section.model_fields)
    nearest = similar_key(str(unknown), valid)
    hint = f"; did you mean {'.'.join([*map(str, path), nearest])!r}?" if nearest else "."
    where = f"section [{name}]" if name else "the top level"
    return f"unknown key {'.'.join(map(str, location))!r}{hint} Keys of {where}: {', '.join(valid)}"


def _expectation(detail: ErrorDetails) -> str:
    text = detail["msg"].removeprefix("Input should be ").removeprefix("a valid ")
    return text[:1].lower() + text[1:]


def _toml_type(value: Any) -> str:
    names = {bool: "boolean", int: "integer", float: "float", str: "string", list: "array", dict: "table"}
    return names.get(type(value), "not set" if value is None else type(value).__name__)


# --- writing -------------------------------------------------------------------------------------------------------


def _table_lines(table: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    """Lines of one table: its values first, then its sub-tables, as TOML demands."""
    sections = {key: value for key, value in table.items() if isinstance(value, Mapping)}
    lines = [f"{_key(key)} = {_value(value)}" for key, value in table.items() if key not in sections]
    if path and (lines or not sections):
        lines = ["", f"[{'.'.join(map(_key, path))}]", *lines]
    for key, value in sections.items():
        lines += _table_lines(value, (*path, str(key)))
    return lines


def _key(key: object) -> str:
    text = str(key)
    is_bare = text.isascii() and text.replace("-", "").replace("_", "").isalnum()
    return text if is_bare else _string(text)


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: Any) -> str:
    if value is None:
        return _string(NOT_SET)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float | int):
        return repr(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(key)} = {_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, Sequence | set | frozenset) and not isinstance(value, str | bytes):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    return _string(str(value.value if isinstance(value, Enum) else value))
