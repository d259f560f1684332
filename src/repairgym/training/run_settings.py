"""The settings that a run folder keeps, so that a call that resumes the run cannot change them unnoticed.

Reads and makes ``configs/<command>.toml`` below a run folder: all settings of the latest call of that command.
Invariant: settings that decide what a run learns or samples never differ between the calls of one run; those that
decide when, where and how long (`FREE`) may.
"""

from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from repairgym.config.loading import flatten, load_config, to_toml
from repairgym.errors import ConfigError
from repairgym.records import Record
from repairgym.rollout.names import CONFIGS_FOLDER

FREE = (
    "*num_workers", "*max_in_flight", "*max_sandboxes", "*rollout.max_attempts", "*endpoint.max_attempts",
    "*max_failures_in_row", "*drain_timeout_s",
    "*layers.*", "*compute.*", "*save_every_steps", "*max_iterations", "watch.*", "cluster.*", "*base_url",
    "*rl.max_sampled_tokens", "*api_key_env", "*is_plain_http_allowed", "endpoint.max_*", "endpoint.*_s",
    "*_per_minute", "*prices*",
)  # fmt: skip
"""Keys (shell patterns) that a later call may set otherwise."""
ALL = ("*",)
_MAX_SHOWN = 8


@dataclass(frozen=True)
class CallConfig:
    """The settings of one call of a command."""

    command: str
    """With what else tells its calls in one run folder apart, e.g. ``train-rl`` or ``rollout-teacher``."""
    config: Record
    free: tuple[str, ...] = ()
    """Patterns of keys that are free for this command, in addition to `FREE`; `ALL`: the file is kept and not compared,
    because something else says what may not change (an evaluation: the fingerprint of its phase)."""
    option: str = "--config"
    """Of the command; reads the kept file."""


def keep_config(folder: Path, call: CallConfig) -> None:
    """Keep the settings of ``call`` in ``folder``; a resumed run must have the kept ones.

    Raises:
        ConfigError: the run was begun with others, or the kept file is not what this version writes.
    """
    file = folder / CONFIGS_FOLDER / f"{call.command.replace('/', '-')}.toml"
    if file.exists() and call.free != ALL:
        remedy = f"resume with its own ({call.option} {file}), name another run folder, or remove that file"
        check_config(load_config(type(call.config), file), call.config, (*FREE, *call.free), folder, remedy)
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f"{file.name}.part")
    partial.write_text(to_toml(call.config), encoding="utf-8")
    partial.replace(file)


def check_config(kept: Record, got: Record, free: tuple[str, ...], run: Path, remedy: str) -> None:
    """Check that ``got`` differs from ``kept`` in free settings only.

    Raises:
        ConfigError: it does not; each differing key is named with both values.
    """
    old, new = (dict(flatten(config.model_dump(mode="json"))) for config in (kept, got))
    names = [name for name in dict.fromkeys((*old, *new)) if old.get(name) != new.get(name)]
    changes = [
        f"{name}={new.get(name, 'absent')} (was {old.get(name, 'absent')})"
        for name in names
        if not any(fnmatchcase(name, pattern) for pattern in free)
    ]
    if changes:
        more = f" and {len(changes) - _MAX_SHOWN} more" if changes[_MAX_SHOWN:] else ""
        raise ConfigError(f"{run} was begun with other settings: {', '.join(changes[:_MAX_SHOWN])}{more}; {remedy}")
