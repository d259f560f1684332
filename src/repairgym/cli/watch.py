"""`repairgym watch`: phases, iterations and alarms of a running or finished run."""

import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from repairgym.cli.options import RunFolder
from repairgym.rollout.names import ALARM_PREFIX, RL, UPDATE_TIME
from repairgym.rollout.rows import Event, PhaseRow
from repairgym.rollout.store import RunStore

STAGES = ("queue", "prefill", "decode", "tool", "grade")
_COLUMNS = (
    ("reward", "rollout/reward_mean", ".3f"),
    ("turns", "rollout/num_turns_mean", ".1f"),
    ("kept", "rollout/num_kept_groups", ".0f"),
    ("of", "rollout/num_groups", ".0f"),
    ("invalid", "rollout/num_invalid", ".0f"),
    ("exploit", "rollout/num_exploited", ".0f"),
    ("long", "rollout/num_overlong", ".0f"),
    ("entropy", "policy/entropy", ".3f"),
    ("gap", "policy/log_prob_gap", ".4f"),
    ("grad", "optim/grad_norm", ".2f"),
    ("roll s", "time/rollout_s", ".0f"),
    ("upd s", UPDATE_TIME, ".0f"),
)
_NUM_ITERATIONS = 8
_NUM_ALARMS = 4
_NUM_PHASES = 14
_MARKS = {"done": ("✓", "dim"), "running": ("▶", "bold"), "planned": ("·", "dim")}
"""Status -> mark and style; others need attention."""
_BARS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Snapshot:
    """A run at one moment."""

    phases: list[PhaseRow]
    num_trajectories: dict[str, int]
    """Phase -> stored episodes."""
    columns: dict[str, dict[int, float]]
    """Metric -> iteration -> value."""
    stage_s: dict[str, float]
    """Stage -> seconds per episode of the newest iteration."""
    alarms: list[Event]

    @property
    def iterations(self) -> list[int]:
        """Iterations with a reward."""
        return sorted(self.columns[_COLUMNS[0][1]])


def read_snapshot(store: RunStore) -> Snapshot:
    """Read the present state of ``store``."""
    columns = {name: dict(store.metrics(RL, name)) for _, name, _ in _COLUMNS}
    return Snapshot(
        phases=store.phases(),
        num_trajectories=store.num_trajectories(),
        columns=columns,
        stage_s=_stage_s(store, max(columns[_COLUMNS[0][1]], default=0)),
        alarms=[event for event in store.events() if event.kind.startswith(ALARM_PREFIX)],
    )


def _stage_s(store: RunStore, step: int) -> dict[str, float]:
    rows = store.rows(phase=RL, step=step)
    total: Counter[str] = Counter()
    for row in rows:
        total.update({stage: row.durations_s.get(stage, 0.0) for stage in STAGES})
    return {stage: total[stage] / len(rows) for stage in STAGES} if rows else {}


def iteration_line(snapshot: Snapshot, iteration: int) -> str:
    """Return an iteration as one line, for a pipe."""
    parts = [f"{title} {values[iteration]:{form}}" for title, values, form in _known(snapshot) if iteration in values]
    return f"{RL} {iteration}: {', '.join(parts)}"


def render(snapshot: Snapshot) -> RenderableType:
    """Return the snapshot for a terminal."""
    parts: list[RenderableType] = [_phases(snapshot)]
    if snapshot.iterations:
        rewards = snapshot.columns[_COLUMNS[0][1]]
        curve = sparkline([rewards[step] for step in snapshot.iterations])
        parts += [Text(f"reward {curve}", style="green"), _iterations(snapshot)]
    if snapshot.stage_s:
        spent = "   ".join(f"{stage} {seconds:.2f} s" for stage, seconds in snapshot.stage_s.items() if seconds)
        parts.append(Text(f"per episode of the newest iteration: {spent}", style="dim"))
    parts += [Text(f"! {event.message}", style="bold red") for event in snapshot.alarms[-_NUM_ALARMS:]]
    return Panel(Group(*parts), title="run", title_align="left", border_style="dim")


def _phases(snapshot: Snapshot) -> RenderableType:
    if not snapshot.phases:
        return Text("nothing has begun yet", style="dim")
    done = [phase for phase in snapshot.phases if phase.status == "done"]
    num_left_out = max(0, min(len(done), len(snapshot.phases) - _NUM_PHASES))
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    if num_left_out:
        table.add_row("✓", f"{num_left_out} more phases", "done")
    left_out = {phase.name for phase in done[:num_left_out]}
    for phase in snapshot.phases:
        if phase.name not in left_out:
            num = snapshot.num_trajectories.get(phase.name, 0)
            time_s = f"{phase.wall_s:.0f} s" if phase.wall_s else ""
            mark, style = _MARKS.get(phase.status, ("!", "bold red"))
            cells = (mark, phase.name, phase.status, f"{num} episodes" if num else "", time_s)
            table.add_row(*cells, style=style)
    return table


def _iterations(snapshot: Snapshot) -> RenderableType:
    table = Table(box=None, header_style="dim", padding=(0, 1, 0, 0))  # fits into 80 columns
    known = _known(snapshot)
    for title in ("it", *(title for title, _, _ in known)):
        table.add_column(title, justify="right")
    for step in snapshot.iterations[-_NUM_ITERATIONS:]:
        table.add_row(str(step), *(f"{values[step]:{form}}" if step in values else "" for _, values, form in known))
    return table


def _known(snapshot: Snapshot) -> list[tuple[str, dict[int, float], str]]:
    return [(title, snapshot.columns[name], form) for title, name, form in _COLUMNS if snapshot.columns[name]]


def sparkline(values: Sequence[float], width: int = 60) -> str:
    """Return the last ``width`` values as bars, scaled from their minimum to their maximum."""
    shown = values[-width:]
    low, high = min(shown), max(shown)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((value - low) * scale)] for value in shown)


def watch(
    run: RunFolder,
    every_s: Annotated[float, typer.Option("--every", min=0.1, help="Seconds between updates.")] = 2.0,
    is_once: Annotated[bool, typer.Option("--once", help="Show it once and exit.")] = False,
) -> None:
    """Show phases, iterations and alarms of a run until it ends; Ctrl-C does not stop the run.

    Example: repairgym watch runs/demo-20260101-120000
    """
    with RunStore.open(run / "run.db", is_read_only=True) as store:
        if is_once:
            Console().print(render(read_snapshot(store)))
            return
        with suppress(KeyboardInterrupt):  # it ends the watching, not the run
            _follow(store, run, every_s)
            typer.echo(f"no process works on {run}", err=True)


def _follow(store: RunStore, run: Path, every_s: float) -> None:
    """Show the run until no process works on it."""
    from repairgym.rollout.calls import is_locked

    if sys.stdout.isatty():
        with Live(render(read_snapshot(store)), auto_refresh=False) as live:
            while is_locked(run):
                time.sleep(every_s)
                live.update(render(read_snapshot(store)), refresh=True)
        return
    lines = _Lines()
    lines.show(read_snapshot(store))
    while is_locked(run):
        time.sleep(every_s)
        lines.show(read_snapshot(store))


class _Lines:
    """Prints new iterations and alarms, for a pipe."""

    def __init__(self) -> None:
        self._num_iterations = 0
        self._num_alarms = 0

    def show(self, snapshot: Snapshot) -> None:
        """Print the iterations and alarms that were not shown yet."""
        for iteration in snapshot.iterations[self._num_iterations :]:
            typer.echo(iteration_line(snapshot, iteration))
        for event in snapshot.alarms[self._num_alarms :]:
            typer.echo(f"alarm: {event.message}")
        self._num_iterations, self._num_alarms = len(snapshot.iterations), len(snapshot.alarms)
