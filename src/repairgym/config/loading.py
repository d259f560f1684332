"""Configuration files and presets: reads TOML and `a.b=value` overrides, makes frozen Records and writes them back.

Guarantees: every key of the files and of the overrides is a field of the Record, every value has the type of its field
(no silent conversion), and ``load_config(cls, write(to_toml(config)), ())`` equals ``config``. TOML has no null: the
string ``"none"`` means *not set* wherever a field may be None.
"""

import difflib
import json
import re
import textwrap
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from itertools import takewhile
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from repairgym.config.schema import explain, is_optional, item_type, nested_type, records_of
from repairgym.errors import ConfigError, InputError
from repairgym.records import Record

ConfigT = TypeVar("ConfigT", bound=Record)
Source = type[Record] | Record
"""A class with its defaults, or the Record that is the default of a section."""
NOT_SET = "none"
PRESETS_FOLDER = Path(__file__).parents[1] / "data" / "presets"
"""Configurations that ship with the package: settings of the papers, of the demo and of small runs."""


class _InlineTable(dict[str, Any]):
    """A section given whole as one override: it replaces the section of a file instead of adding to it."""


def load_config(
    cls: type[ConfigT], files: Path | Sequence[Path] | None = None, overrides: Sequence[str] = ()
) -> ConfigT:
    """Return a ``cls`` from its defaults, then ``files``, then ``overrides``; the later wins, key by key.

    A section that chooses another ``type`` or ``preset`` than before starts from the defaults of that choice.

    ``overrides`` are ``key=value`` or ``section.key=value``; the value is read as TOML, and as a plain string where it
    is not TOML (``optimizer.type=muon``, ``optimizer.betas=[0.9, 0.95]``). Lists also without brackets
    (``packages=boltons,click``).

    Raises:
        InputError: a file cannot be read.
        ConfigError: a syntax error, an unknown key or a value of the wrong type; the message names what is expected.
    """
    paths = [files] if isinstance(files, Path) else list(files or ())
    given: dict[str, Any] = {}
    for path in paths:
        given = _merge(given, _expand_shorthands(_read_toml(path), cls), cls)
    given = _merge(given, _read_overrides(overrides, cls), cls)
    data = _completed(_with_nulls(given, cls), cls)
    try:
        return cls.model_validate_json(json.dumps(data, default=str), strict=True)
    except ValidationError as error:
        texts = {key.strip(): text.strip() for key, _, text in (override.partition("=") for override in overrides)}
        raise ConfigError(_origin(paths, overrides, error) + explain(cls, data, error, texts)) from None


def _origin(paths: Sequence[Path], overrides: Sequence[str], error: ValidationError) -> str:
    """Return the names of the files, unless all that is wrong was given by overrides."""
    keys = [text.partition("=")[0].strip() for text in overrides]
    places = [".".join(map(str, problem["loc"])) for problem in error.errors()]
    is_given = all(any(place.startswith(key) or key.startswith(place or ".") for key in keys) for place in places)
    return "" if is_given or not paths else f"{', '.join(map(str, paths))}: "


def to_toml(config: Record, without: Mapping[str, Any] | None = None) -> str:
    """Return ``config`` as TOML with every field, so that a run folder says all that a run used.

    ``without`` names fields to leave out, as pydantic's ``exclude``.
    """
    return "\n".join(_table_lines(config.model_dump(mode="python", exclude=without), ())).lstrip("\n") + "\n"


def flatten(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield (dotted key, value) of each setting."""
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


def _read_overrides(overrides: Sequence[str], cls: type[Record]) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for override in overrides:
        key, separator, text = override.partition("=")
        parts = [part.strip() for part in key.split(".")]
        if not separator or not all(parts):
            raise ConfigError(f"got the override {override!r}, expected key=value or section.key=value")
        annotation: Any = cls
        for part in parts:
            annotation = nested_type(annotation, part)
        value = _parse_value(text.strip(), annotation)
        if isinstance(value, str) and (field := _shorthand(annotation)):
            parts.append(field)
        section = data
        for depth, part in enumerate(parts[:-1], start=1):
            section = section.setdefault(part, {})
            if not isinstance(section, dict):
                raise _not_a_section(override, parts[:depth])
        section[parts[-1]] = _InlineTable(value) if isinstance(value, dict) else value
    return data


def _parse_value(text: str, annotation: Any) -> Any:
    """Return the value of an override; lists may lack their brackets."""
    value = _parse_toml(text)
    item = item_type(annotation)
    if item is None or isinstance(value, list) or (value == NOT_SET and is_optional(annotation)):
        return value
    parts = [part.strip() for part in text.split(",") if part.strip()]
    values = [_parse_toml(part) for part in parts]
    pairs = zip(parts, values, strict=True)
    return [part if item is str and not isinstance(parsed, str) else parsed for part, parsed in pairs]


def _parse_toml(text: str) -> Any:
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return parsed["value"] if len(parsed) == 1 else text


def _shorthand(annotation: Any) -> str:
    """Return the field that a plain string in place of a section sets; "" where there is none."""
    records = records_of(annotation)
    return str(getattr(records[0], "SHORTHAND", "")) if len(records) == 1 else ""


def _expand_shorthands(value: Any, annotation: Any) -> Any:
    if isinstance(value, str) and (field := _shorthand(annotation)):
        return {field: value}
    if isinstance(value, dict):
        return {key: _expand_shorthands(item, nested_type(annotation, key)) for key, item in value.items()}
    return value


def _with_nulls(value: Any, annotation: Any) -> Any:
    """Return ``value`` with None for each ``"none"`` in a place where ``annotation`` allows None."""
    if value == NOT_SET and is_optional(annotation):
        return None
    if isinstance(value, dict):
        return {key: _with_nulls(item, nested_type(annotation, key)) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_nulls(item, nested_type(annotation, index)) for index, item in enumerate(value)]
    return value


# --- combining -----------------------------------------------------------------------------------------------------


def _merge(
    base: Mapping[str, Any], layer: Mapping[str, Any], source: Source | None, path: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Return ``base`` with the keys of ``layer``, which wins; ``source`` has the defaults of both."""
    merged = dict(base)
    if _choice(layer, source, "preset") != _choice(base, source, "preset") and "preset" in layer:
        merged = {key: value for key, value in base.items() if key not in getattr(source, "PRESET_PARTS", ())}
    for key, value in layer.items():
        old, default = merged.get(key), _default(source, key)
        if not isinstance(value, dict) or isinstance(value, _InlineTable) or key not in merged:
            merged[key] = value
        elif not isinstance(old, dict):
            raise _not_a_section(f"{'.'.join((*path, key))}.{next(iter(value), '')}", [*path, key])
        elif "type" in value and _choice(value, default, "type") != _choice(old, default, "type"):
            merged[key] = value
        else:
            merged[key] = _merge(old, value, default, (*path, key))
    return merged


def _completed(data: Mapping[str, Any], source: Source) -> dict[str, Any]:
    """Return ``data`` where each section that it names in part has its other keys from the section's own default.

    The default of a section belongs to the Record that holds it: `DemoConfig` has other RL sizes than `RlConfig`.
    """
    cls = source if isinstance(source, type) else type(source)
    if "preset" in data and hasattr(cls, "with_preset"):
        owner: Any = source() if isinstance(source, type) else source
        source = owner.with_preset(data["preset"])
    completed = dict(data)
    for name in cls.model_fields:
        default, given = _default(source, name), data.get(name)
        if isinstance(default, Record) and isinstance(given, dict) and _is_same_type(given, default):
            completed[name] = _completed(given, default)
        elif isinstance(source, Record) and name not in data:
            completed[name] = source.model_dump(mode="json", include={name})[name]
    return completed


def _is_same_type(given: Mapping[str, Any], default: Record) -> bool:
    """Return False where ``given`` chooses another member of a union than ``default``."""
    return "type" not in given or given["type"] == getattr(default, "type", None)


def _default(source: Source | None, name: str) -> Any:
    """Return the default of the field ``name``; None when there is none."""
    if isinstance(source, Record):
        return getattr(source, name, None)
    field = source.model_fields.get(name) if isinstance(source, type) else None
    return field.get_default(call_default_factory=True) if field else None


def _choice(data: Mapping[str, Any] | None, source: Source | None, name: str) -> Any:
    """Return the ``type`` or ``preset`` of a section: as given, or by default."""
    return (data or {}).get(name) or _default(source, name)


def _not_a_section(override: str, path: Sequence[str]) -> ConfigError:
    return ConfigError(f"{override!r} looks into {'.'.join(path)!r}, which is a value, not a section")


# --- writing -------------------------------------------------------------------------------------------------------


def _table_lines(table: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    """Lines of one table: its values first, then its sub-tables, as TOML demands."""
    sections = {key: value for key, value in table.items() if isinstance(value, Mapping)}
    lines = [f"{_key(key)} = {toml_value(value)}" for key, value in table.items() if key not in sections]
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


def toml_value(value: Any) -> str:
    """Return ``value`` as TOML."""
    if value is None:
        return _string(NOT_SET)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float | int):
        return repr(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(key)} = {toml_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, Sequence | set | frozenset) and not isinstance(value, str | bytes):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    return _string(str(value.value if isinstance(value, Enum) else value))


# --- presets -------------------------------------------------------------------------------------------------------


def preset_names() -> list[str]:
    """Return the names of all presets, e.g. ``paper_b/rft``."""
    files = PRESETS_FOLDER.rglob("*.toml")
    return sorted(path.relative_to(PRESETS_FOLDER).with_suffix("").as_posix() for path in files)


def preset_file(name: str) -> Path:
    """Return the TOML file of the preset ``name``; else raise a `ConfigError` with the nearest."""
    names = preset_names()
    if name.removesuffix(".toml") not in names:
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]!r}?" if near else ";"
        raise ConfigError(f"got the preset {name!r}{hint} presets: {', '.join(names)}")
    return PRESETS_FOLDER / f"{name.removesuffix('.toml')}.toml"


def preset_title(name: str) -> str:
    """Return the first sentence of the comment at the head of a preset."""
    lines = preset_file(name).read_text(encoding="utf-8").splitlines()
    comment = " ".join(line.lstrip("# ") for line in takewhile(lambda line: line.startswith("#"), lines))
    return textwrap.shorten(re.split(r"\.( |$)", comment)[0], 110, placeholder=" ...")


def file_or_preset(name: Path | None) -> Path | None:
    """Return ``name`` where it is a file; else the preset of that name."""
    return name if name is None or name.is_file() or name.suffix == ".toml" else preset_file(str(name))
