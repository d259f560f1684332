"""Asynchronous RL: sampling with older policy versions while a thread learns the next ones.

`WeightVersions` keeps one model folder per version (hard links where possible), which never changes once published, so
a worker that loads late loads the right version. `BackgroundUpdates` runs the updates in order, in one thread.
Guarantees: sampling stays in the caller's thread, where Ctrl-C lets episodes end; a started update is finished, also
when the caller stops; an error of an update is raised in the caller, unless the caller ends with another error.
"""

import os
import shutil
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Generic, Self, TypeVar

from repairgym.errors import disk_full_as_repairgym_error
from repairgym.learning.distributed.fsdp import use_training_device


class WeightVersions:
    """The versions in one folder."""

    def __init__(self, folder: Path) -> None:
        """Start empty: remove the versions of a killed run from ``folder``."""
        self._folder = folder
        self.clear()

    def path(self, version: int) -> Path:
        """Model folder of a version."""
        return self._folder / f"{version:06d}"

    def publish(self, model: Path, version: int) -> None:
        """Keep the model folder ``model`` as ``version``, whatever becomes of it later.

        Raises:
            DiskFullError: no room.
        """
        with disk_full_as_repairgym_error(self._folder):
            shutil.copytree(model, self.path(version), copy_function=_link_or_copy)

    def forget_before(self, version: int) -> None:
        """Remove the versions below ``version``."""
        for path in self._folder.iterdir():
            if int(path.name) < version:
                shutil.rmtree(path)

    def clear(self) -> None:
        """Remove all versions."""
        shutil.rmtree(self._folder, ignore_errors=True)


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


Batch = TypeVar("Batch")


class BackgroundUpdates(Generic[Batch]):
    """Updates in a thread. Leaving the context drops waiting batches and lets the running update end."""

    def __init__(self, update: Callable[[Batch], dict[str, float]], num_done: int) -> None:
        """Prepare the thread.

        Args:
            update: One update, saved when it returns; its metrics.
            num_done: Updates done before.
        """
        self._update = update
        self._num_done = num_done
        self._waiting: deque[Batch] = deque()
        self._metrics: deque[dict[str, float]] = deque()
        self._error: BaseException | None = None
        self._is_error_raised = False
        self._is_over = False
        self._changed = threading.Condition()
        # A daemon: a second Ctrl-C ends the program without waiting for it.
        self._thread = threading.Thread(target=self._work, name="learner", daemon=True)

    def __enter__(self) -> Self:
        """Start."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop.

        Raises:
            Exception: an error of the last update that was not raised before, when the caller ends without an error.
        """
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        self._thread.join()
        if self._error is not None and not self._is_error_raised and (kind is None or kind is GeneratorExit):
            raise self._error

    def submit(self, batch: Batch) -> None:
        """Update with ``batch`` once those before it are done."""
        with self._changed:
            self._waiting.append(batch)
            self._changed.notify_all()

    def finished(self, num_updates: int) -> Iterator[dict[str, float]]:
        """Metrics of the updates that have ended since the last call, in order.

        Args:
            num_updates: Waits until so many are done, those before this object included.

        Raises:
            Exception: what an update raised.
        """
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._metrics or self._error or self._num_done >= num_updates)
                if not self._metrics:
                    if self._error is not None:
                        self._is_error_raised = True
                        raise self._error
                    return
                metrics = self._metrics.popleft()
            yield metrics

    def _work(self) -> None:
        try:
            use_training_device()
            while (batch := self._next()) is not None:
                metrics = self._update(batch)
                with self._changed:
                    self._metrics.append(metrics)
                    self._num_done += 1
                    self._changed.notify_all()
        except BaseException as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _next(self) -> Batch | None:
        """Return the next batch; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_over)
            return None if self._is_over else self._waiting.popleft()
