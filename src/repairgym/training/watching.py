"""Alarms of a run in its store: what is new becomes an event and a line of progress.

Reads metrics of the store; makes events of kind ``alarm_<kind>``. Invariant: a step that a resumed run repeats gives
each of its alarms once.
"""

from __future__ import annotations

from repairgym.config.watch import AlarmConfig
from repairgym.rollout.names import ALARM_PREFIX
from repairgym.rollout.store import RunStore
from repairgym.training.alarms import METRICS, Alarm, new_alarms
from repairgym.training.progress import Progress


def check_alarms(store: RunStore, phase: str, config: AlarmConfig, progress: Progress) -> list[Alarm]:
    """Look at the metrics of ``phase`` up to now; returns the alarms that its newest step gives for the first time."""
    points = {name: store.metrics(phase, name) for name in METRICS}
    newest = max((values[-1][0] for values in points.values() if values), default=0)
    known = {(event.kind, event.message) for event in store.events()}
    found = []
    for alarm in new_alarms(points, config):
        kind, message = f"{ALARM_PREFIX}{alarm.kind}", f"iteration {newest}: {alarm.text}"
        if (kind, message) not in known:
            store.add_event(kind, message, phase=phase)
            progress("alarm", 0, 0, message)
            found.append(alarm)
    return found
