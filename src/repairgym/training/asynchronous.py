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
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
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
Metrics = dict[str, float]


class BackgroundUpdates(Generic[Batch]):
    """Updates in a thread. Leaving the context drops waiting batches and lets the running update end."""

    def __init__(self, update: Callable[[Batch], Metrics], num_done: int) -> None:
        """Prepare the thread: ``update`` saves and returns its metrics, ``num_done`` updates are done already."""
        self._update = update
        self._num_done = num_done
        self._waiting: SimpleQueue[tuple[Batch, Future[Metrics]] | None] = SimpleQueue()
        self._results: deque[Future[Metrics]] = deque()
        self._is_over = False
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
        self._is_over = True
        self._waiting.put(None)
        self._thread.join()
        if kind is None or kind is GeneratorExit:
            for result in self._results:
                if result.done():
                    result.result()

    def submit(self, batch: Batch) -> None:
        """Update with ``batch`` once those before it are done."""
        self._results.append(Future())
        self._waiting.put((batch, self._results[-1]))

    def finished(self, num_updates: int) -> Iterator[Metrics]:
        """Metrics of the updates that have ended since the last call; waits until ``num_updates`` are done in all.

        Raises:
            Exception: what an update raised.
        """
        while self._results and (self._results[0].done() or self._num_done < num_updates):
            self._num_done += 1
            yield self._results.popleft().result()

    def _work(self) -> None:
        while (work := self._waiting.get()) is not None and not self._is_over:
            batch, result = work
            try:
                use_training_device()
                result.set_result(self._update(batch))
            except BaseException as error:
                result.set_exception(error)
                return
