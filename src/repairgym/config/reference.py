"""Explanations of settings for people and editors: commented TOML, one setting, a JSON schema, the reference page.

Guarantee: every command with a configuration is in `COMMAND_CONFIGS`, and every class that it uses is on the page.
"""

import json
import textwrap
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

from pydantic.fields import FieldInfo

from repairgym.config import cluster, commands, recipes, rounds, selection, solving, sweep, tasks
from repairgym.config.loading import to_toml, toml_value
from repairgym.config.sandbox import LayersConfig
from repairgym.config.schema import iter_settings, members_of, records_of, suggest_key, tags_of
from repairgym.errors import ConfigError
from repairgym.records import Record

COMMAND_CONFIGS: Mapping[str, type[Record]] = {
    "train rl": recipes.RlCommandConfig,
    "train sft": recipes.SftCommandConfig,
    "train rft": recipes.RftCommandConfig,
    "train step_dpo": recipes.StepDpoCommandConfig,
    "train dagger": rounds.DaggerConfig,
    "train hints": rounds.HintsConfig,
    "train agent_q": rounds.AgentQConfig,
    "train malt": rounds.MaltConfig,
    "train self_play": rounds.SelfPlayConfig,
    "train dapo_two_stage": recipes.TwoStageConfig,
    "train distill_then_grpo": recipes.DistillThenGrpoConfig,
    "train base": recipes.PretrainingConfig,
    "train functions": recipes.PretrainingConfig,
    "train changes": commands.ChangesConfig,
    "train verl": cluster.VerlConfig,
    "rollout": commands.RolloutCommandConfig,
    "solve": solving.SolveCommandConfig,
    "verl data": selection.DataSetSelection,
    "replay": commands.ReplayCommandConfig,
    "demo": recipes.DemoConfig,
    "tasks build": tasks.TasksConfig,
    "tasks fresh": tasks.FreshConfig,
    "tasks aged": tasks.AgedConfig,
    "tasks build --imported": tasks.ImportedConfig,
    "tasks build --manifest": tasks.RebuildConfig,
    "tasks curate": tasks.CurationConfig,
    "tasks backtest": commands.BackTestConfig,
    "tasks calibrate": commands.CalibrationConfig,
    "tasks evolve": commands.EvolutionConfig,
    "grade": commands.GradeCommandConfig,
    "eval run": commands.EvalCommandConfig,
    "eval matrix": commands.MatrixConfig,
    "eval audit": commands.AuditConfig,
    "eval exploit-study": commands.ExploitStudyConfig,
    "eval merge": commands.MergeConfig,
    "eval contamination": commands.ContaminationConfig,
    "sweep": sweep.SweepConfig,
    "analyze": commands.AnalysisConfig,
    "report": commands.DataFilesConfig,
    "trajectories parquet": commands.TrajectoryTablesConfig,
    "knowledge starts": commands.StartsConfig,
    "serve": commands.ServeConfig,
    "serve-tasks": commands.ServeTasksConfig,
    "acp": commands.AcpConfig,
    "view": commands.ViewConfig,
    "plan": cluster.PlanCommandConfig,
    "cluster check": cluster.ClusterCheckConfig,
    "doctor": LayersConfig,
}
"""Command -> its configuration; of ``train verl`` the machine's part (``verl.*``)."""
_WIDTH = 110
_HEADER = """# Configuration reference

Generated from the code by `repairgym config reference`; do not edit. `repairgym config show COMMAND` prints the
resolved defaults of a command, `repairgym config explain KEY` one setting, `repairgym config schema COMMAND` a JSON
schema for editors. How files and overrides combine: [configure.md](../howto/configure.md).
"""


class Place(NamedTuple):
    """A section or value of the configuration of a command."""

    command: str
    cls: type[Record]
    key: tuple[str, ...]
    field: FieldInfo | None
    """None for the whole configuration."""


def find_place(name: str) -> Place:
    """Return the place of a command (``rl``, ``train rl``), or of a dotted key in the first command that has it."""
    _describe_fields()
    for command, cls in COMMAND_CONFIGS.items():
        if name in (command, command.rpartition(" ")[2], command.replace(" ", ".")):
            return Place(command, cls, (), None)
    key = tuple(name.split("."))
    settings = [(command, cls, setting) for command, cls in COMMAND_CONFIGS.items() for setting in iter_settings(cls)]
    for command, cls, setting in settings:
        if setting.key == key:
            return Place(command, cls, key, setting.field)
    hint = suggest_key(key, [setting for _, _, setting in settings]) or "."
    raise ConfigError(f"no command and no setting {name!r}{hint} Commands: {', '.join(COMMAND_CONFIGS)}")


def default_of(place: Place) -> Any:
    """Return the default of a command or setting; None for a setting of a union member that is not the default."""
    try:
        value: Any = place.cls()
    except ValueError:
        return None
    for part in place.key:
        value = getattr(value, part, None)
    return value


# --- showing -------------------------------------------------------------------------------------------------------


def commented_toml(name: str) -> str:
    """Return the defaults of a command or section as TOML, each key below its docstring."""
    place = find_place(name)
    value = default_of(place)
    if isinstance(value, Record):
        return "\n".join(_commented(value, place.key)).strip("\n") + "\n"
    if place.field is None:
        return to_toml(value) if value else f"# {place.command} has settings without a default: config schema\n"
    return "\n".join([*_comment(place.field), f"{place.key[-1]} = {toml_value(value)}"]) + "\n"


def _commented(record: Record, path: tuple[str, ...]) -> Iterator[str]:
    fields = type(record).model_fields
    sections = [name for name in fields if isinstance(getattr(record, name), Record)]
    if path:
        yield f"\n[{'.'.join(path)}]"
    for name in fields:
        if name not in sections:
            yield from _comment(fields[name])
            value = record.model_dump(mode="python", include={name})[name]
            yield f"{name} = {toml_value(value)}"
    for name in sections:
        yield ""
        yield from _comment(fields[name])
        lines = list(_commented(getattr(record, name), (*path, name)))
        yield from [lines[0].lstrip("\n"), *lines[1:]] if fields[name].description else lines


def _comment(field: FieldInfo) -> Iterator[str]:
    is_union = len(records_of(field.annotation)) > 1
    is_choice = is_union or (get_origin(_plain(field.annotation)) is Literal and len(get_args(field.annotation)) > 1)
    choices = type_text(field).removeprefix("section, ") if is_choice else ""
    text = " ".join(filter(None, [plain_text(field.description), f"({choices})" if choices else ""]))
    yield from textwrap.wrap(text, _WIDTH, initial_indent="# ", subsequent_indent="# ")


# --- explaining ----------------------------------------------------------------------------------------------------


def explain_setting(name: str) -> str:
    """Return type, bounds, default and docstring of a setting; of a section also its keys, by member of a union."""
    place = find_place(name)
    lines = [f"{'.'.join(place.key) or place.command}  (repairgym {place.command})"]
    records = records_of(place.field.annotation) if place.field else [place.cls]
    if place.field:
        lines += textwrap.wrap(plain_text(place.field.description), _WIDTH)
        lines.append(f"type: {type_text(place.field)}")
        default = default_of(place)
        if not isinstance(default, Record):
            lines.append(f"default: {toml_value(default)}")
        elif len(records) > 1:
            lines.append(f"default: {tags_of(type(default))[0]}")
    for record in records:
        lines += ["", *_explain_record(record, is_member=len(records) > 1)]
    return "\n".join(lines) + "\n"


def _explain_record(record: type[Record], *, is_member: bool) -> Iterator[str]:
    title = f"type = {' or '.join(map(repr, tags_of(record)))}: " if is_member else ""
    yield from textwrap.wrap(title + plain_text(record.__doc__), _WIDTH)
    for name, field in record.model_fields.items():
        if name != "type" or not is_member:
            yield f"  {name}: {type_text(field)}{_default_text(field)}"
            yield from textwrap.wrap(
                plain_text(field.description), _WIDTH, initial_indent="      ", subsequent_indent="      "
            )


def _default_text(field: FieldInfo) -> str:
    if field.is_required():
        return ", required"
    default = field.get_default(call_default_factory=True)
    if not isinstance(default, Record):
        return f", default {toml_value(default)}"
    return f", default {tags_of(type(default))[0]}" if len(records_of(field.annotation)) > 1 else ""


def type_text(field: FieldInfo) -> str:
    """Return the type of a field in words, with its bounds."""
    return _type_text(field.annotation) + _bounds_text(field.metadata)


def _type_text(annotation: Any) -> str:
    if get_origin(annotation) is Annotated:
        inner, *metadata = get_args(annotation)
        return _type_text(inner) + _bounds_text(metadata)
    members = members_of(annotation)
    records = records_of(annotation)
    if len(records) > 1 and len(records) == len(members):
        return "section, `type` is " + " | ".join(tag for record in records for tag in tags_of(record))
    if len(members) > 1:
        parts = list(get_args(_plain(annotation)) or members)
        return " or ".join(dict.fromkeys(_type_text(part) for part in parts))
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation is type(None):
        return '"none"'
    if origin is Literal:
        return " | ".join(map(toml_value, arguments))
    if origin in (tuple, list):
        items = [argument for argument in arguments if argument is not Ellipsis]
        is_fixed = origin is tuple and Ellipsis not in arguments
        return f"list of {len(items)} {_type_text(items[0])}" if is_fixed else f"list of {_type_text(items[0])}"
    if origin is dict:
        return f"table of {_type_text(arguments[1])}"
    if records:
        return "section"
    names = {str: "text", bool: "true | false", int: "integer", float: "number"}
    return names.get(annotation, getattr(annotation, "__name__", str(annotation)).lower())


def _plain(annotation: Any) -> Any:
    return _plain(get_args(annotation)[0]) if get_origin(annotation) is Annotated else annotation


def _bounds_text(metadata: Any) -> str:
    signs = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
    bounds = [(sign, getattr(item, name, None)) for item in metadata for name, sign in signs.items()]
    return "".join(f" {sign} {value}" for sign, value in bounds if value is not None)


def plain_text(text: str | None) -> str:
    """Return a docstring on one line, in Markdown's marks for code."""
    return " ".join((text or "").replace("``", "`").split())


# --- schema and page -----------------------------------------------------------------------------------------------


def json_schema(command: str) -> str:
    """Return the JSON schema of a command's configuration, for editors of its TOML."""
    place = find_place(command)
    return json.dumps({"title": f"repairgym {place.command}", **place.cls.model_json_schema()}, indent=2)


def reference_page() -> str:
    """Return the Markdown page of all commands and all classes that their configurations are made of."""
    _describe_fields()
    lines = [_HEADER, "## Commands", "", "| command | configuration |", "|---|---|"]
    lines += [f"| `repairgym {command}` | {_link(cls)} |" for command, cls in COMMAND_CONFIGS.items()]
    lines += ["", "## Sections"]
    for record in _all_records():
        lines += ["", f"### {record.__name__}", "", _cell(record.__doc__), ""]
        lines += ["| key | type | default | |", "|---|---|---|---|"]
        lines += [_row(name, field) for name, field in record.model_fields.items()]
    return "\n".join(lines) + "\n"


@cache
def _describe_fields() -> None:
    for record in _all_records():
        for name, text in record.attribute_docs().items():
            record.model_fields[name].description = text


def _all_records() -> list[type[Record]]:
    known: dict[str, type[Record]] = {}
    waiting = list(COMMAND_CONFIGS.values())
    while waiting:
        record = waiting.pop(0)
        if record.__name__ not in known:
            known[record.__name__] = record
            for field in record.model_fields.values():
                waiting += _records_within(field.annotation)
    return [known[name] for name in sorted(known)]


def _records_within(annotation: Any) -> list[type[Record]]:
    """Return the Records of an annotation, also those inside of lists and tables."""
    nested = [argument for member in members_of(annotation) for argument in get_args(member)]
    return records_of(annotation) + [record for argument in nested for record in _records_within(argument)]


def _row(name: str, field: FieldInfo) -> str:
    records = _records_within(field.annotation)
    kind = ", ".join(map(_link, records)) if records else _cell(type_text(field))
    default = "required" if field.is_required() else _default_cell(field)
    return f"| `{name}` | {kind} | {default} | {_cell(field.description)} |"


def _default_cell(field: FieldInfo) -> str:
    default = field.get_default(call_default_factory=True)
    if isinstance(default, Record):
        return f"`{tags_of(type(default))[0]}`" if len(records_of(field.annotation)) > 1 else ""
    return f"`{toml_value(default)}`".replace("|", "\\|")


def _link(record: type[Record]) -> str:
    return f"[{record.__name__}](#{record.__name__.lower()})"


def _cell(text: str | None) -> str:
    return plain_text(text).replace("|", "\\|").replace("<", "&lt;")
