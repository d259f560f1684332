"""The settings of a config class, read from its annotations, and explanations of unusable configurations.

Sections of every member of a union are listed, and each setting of a member names the ``type`` that it needs. A
suggested key exists, and is accepted with that ``type``.
"""

import difflib
import json
import types
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from repairgym.records import Record

SYNONYMS = {
    name: setting
    for setting, names in {
        "algorithm": "dapo algo",
        "alpha": "lora_alpha",
        "betas": "beta1",
        "coefficient": "kl_coef kl_beta",
        "learning_rate": "lr",
        "max_action_tokens": "max_tokens max_new_tokens",
        "max_grad_norm": "grad_clip max_norm",
        "max_iterations": "iterations steps max_steps",
        "max_len_tokens": "context_length max_model_len max_seq_len",
        "num_epochs": "epochs",
        "num_samples": "n samples",
        "num_warmup_steps": "warmup warmup_steps",
        "num_workers": "workers",
        "optimizer": "optimiser",
        "rank": "r lora_rank",
        "temperature": "temp",
        "weight_decay": "wd",
    }.items()
    for name in names.split()
}
"""Other names of settings in the field -> name here."""
_MAX_SUGGESTIONS = 3


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


# --- explanations --------------------------------------------------------------------------------------------------


def explain(
    cls: type[Record], data: Mapping[str, Any], error: ValidationError, given: Mapping[str, str] | None = None
) -> str:
    """Return one sentence per detail of ``error``, which validating ``data`` as ``cls`` raised.

    ``given`` has the text of values that overrides set.
    """
    return "; ".join(_explain(cls, data, detail, given or {}) for detail in error.errors())


def _explain(cls: type[Record], data: Mapping[str, Any], detail: ErrorDetails, given: Mapping[str, str]) -> str:
    keys, section = locate(cls, detail["loc"])
    key = ".".join(map(str, keys)) or cls.__name__
    context = detail.get("ctx", {})
    match detail["type"]:
        case "extra_forbidden":
            return _explain_unknown(cls, data, keys, section, detail["input"])
        case "missing":
            return f"{key} is missing; set it in the file or with {key}=VALUE"
        case "value_error" | "assertion_error":
            return f"{key}: {detail['msg'].partition(', ')[2] or detail['msg']}"
        case "union_tag_invalid":
            return _explain_choice(f"{key}.type", context["tag"], context["expected_tags"])
        case "union_tag_not_found":
            return f"{key}: got no type, expected {key}.type={context['discriminator']}"
        case "literal_error" if isinstance(detail["input"], str):
            return _explain_choice(key, detail["input"], context["expected"])
    got = json.dumps(detail["input"], default=str)
    expected = detail["msg"].removeprefix("Input should be ").removeprefix("a valid ")
    # The text as it was given: read as a number and written again, 3.10 would be 3.1.
    hint = f"; write {key}='\"{given.get(key, 'TEXT')}\"' for text" if detail["type"] == "string_type" else ""
    return f"{key}: got {got} ({_toml_type(detail['input'])}), expected: {expected[:1].lower()}{expected[1:]}{hint}"


def _explain_choice(key: str, got: str, expected: str) -> str:
    choices = [choice.strip().strip("'") for choice in expected.replace(" or ", ", ").split(", ")]
    nearest = difflib.get_close_matches(got, choices, n=1)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
    return f"{key}: got {got!r}, expected one of {', '.join(choices)}{hint}"


def _toml_type(value: Any) -> str:
    names = {bool: "boolean", int: "integer", float: "float", str: "string", list: "array", dict: "table"}
    return names.get(type(value), "not set" if value is None else type(value).__name__)


# --- unknown keys --------------------------------------------------------------------------------------------------


def _explain_unknown(
    cls: type[Record], data: Mapping[str, Any], keys: Sequence[int | str], section: type[Record], value: object
) -> str:
    path = ".".join(map(str, keys[:-1]))
    full = (*map(str, keys), *_first_leaf(value))
    settings = list(iter_settings(cls, data))
    hint = _similar_field(path, str(keys[-1]), section, settings) or suggest_key(full, settings)
    where = f"section [{path}]" if path else "the top level"
    known = ", ".join(sorted(section.model_fields))
    return f"unknown key {'.'.join(full)!r}{hint or '.'} Keys of {where}: {known}"


def _first_leaf(value: object) -> tuple[str, ...]:
    if not isinstance(value, Mapping) or not value:
        return ()
    key = next(iter(value))
    return (str(key), *_first_leaf(value[key]))


def suggest_key(keys: Sequence[str], settings: Sequence[Setting]) -> str:
    """Return a hint at the settings that ``keys`` probably meant, e.g. "; did you mean 'sft.seed'?"; "" without one."""
    meant = tuple(SYNONYMS.get(key, key) for key in keys)
    conditions = [setting.condition for setting in settings if setting.key == tuple(keys) and setting.condition]
    if conditions:
        return f"; it needs {' or '.join(dict.fromkeys(conditions))}."
    best = _best(settings, keys, meant)
    if not 0 < len(best) <= _MAX_SUGGESTIONS:
        return ""
    names = [repr(setting.name) + (f" (with {setting.condition})" if setting.condition else "") for setting in best]
    return f"; did you mean {' or '.join(names)}?"


def _best(settings: Sequence[Setting], keys: Sequence[str], meant: Sequence[str]) -> list[Setting]:
    """Return the settings of the name meant that share most with its path; else those of a similar name."""
    ordered = sorted(settings, key=lambda setting: bool(setting.condition), reverse=True)
    unique = {setting.key: setting for setting in ordered}
    for wanted in (keys, meant):
        named = [setting for setting in unique.values() if setting.key[-1] == wanted[-1]]
        if named:
            return _most_alike(named, wanted)
    siblings = [setting for setting in unique.values() if setting.key[:-1] == tuple(keys[:-1])]
    for pool, cutoff in ((siblings, 0.5), (list(unique.values()), 0.8)):
        near = difflib.get_close_matches(keys[-1], {setting.key[-1] for setting in pool}, n=1, cutoff=cutoff)
        if near:
            return _most_alike([setting for setting in pool if setting.key[-1] == near[0]], keys)
    return []


def _most_alike(settings: Sequence[Setting], keys: Sequence[str]) -> list[Setting]:
    def likeness(setting: Setting) -> tuple[bool, int, int]:
        own = setting.key
        return not setting.condition, _num_common(own[::-1], keys[::-1]), _num_common(own, keys)

    most = max(map(likeness, settings))
    return [setting for setting in settings if likeness(setting) == most]


def _num_common(first: Sequence[str], second: Sequence[str]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))


def _similar_field(path: str, name: str, section: type[Record], settings: Sequence[Setting]) -> str:
    """Return a hint inside a list or a table of Records, whose keys are not settings of the tree."""
    if any(setting.name == path for setting in settings) or not path:
        return ""
    nearest = difflib.get_close_matches(SYNONYMS.get(name, name), list(section.model_fields), n=1, cutoff=0.5)
    return f"; did you mean {f'{path}.{nearest[0]}'!r}?" if nearest else ""
