"""A line every half a minute about what still runs, so that no long step is silent."""

import threading
import time
from typing import Self

from repairgym.cli.display import ProgressDisplay

EVERY_S = 30.0


class StillRunning:
    """Names what runs, and for how long. Use as a context manager."""

    def __init__(self, progress: ProgressDisplay, every_s: float = EVERY_S) -> None:
        """Print through ``progress``."""
        self._progress = progress
        self._every_s = every_s
        self._since: dict[str, float] = {}
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._print, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def started(self, name: str) -> None:
        """Take note that ``name`` runs."""
        self._since[name] = time.monotonic()

    def ended(self, name: str) -> None:
        """Take note that ``name`` does not run any more."""
        self._since.pop(name, None)

    def only(self, name: str) -> None:
        """Take note that ``name`` runs, and nothing else."""
        self._since = {name: time.monotonic()}

    def _print(self) -> None:
        while not self._end.wait(self._every_s):
            now = time.monotonic()
            running = [(name, now - since) for name, since in list(self._since.items()) if now - since >= self._every_s]
            if running:
                told = "; ".join(f"{name} (for {duration_s:.0f} s)" for name, duration_s in running)
                self._progress("still running", 0, 0, told)
