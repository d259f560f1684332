"""The first Ctrl-C lets episodes in flight end, the second one stops at once.

Reads SIGINT of the main thread; makes a flag. Invariant: whatever handled SIGINT before handles it again afterwards;
where somebody else handles it (an event loop, a program that embeds this one), nothing is changed.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


@dataclass
class Drain:
    """Whether nothing new shall begin, and since when."""

    asked_at_s: float | None = None
    """On the monotonic clock; None: go on."""

    @property
    def is_asked(self) -> bool:
        """True when nothing new shall begin."""
        return self.asked_at_s is not None

    def is_over(self, timeout_s: float) -> bool:
        """True when what is in flight has had ``timeout_s`` seconds to end."""
        return self.asked_at_s is not None and time.monotonic() - self.asked_at_s > timeout_s


@contextmanager
def draining_on_interrupt() -> Iterator[Drain]:
    """Within, the first SIGINT sets the flag, the next raises KeyboardInterrupt."""
    drain = Drain()
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield drain
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if drain.is_asked:
            raise KeyboardInterrupt
        drain.asked_at_s = time.monotonic()

    signal.signal(signal.SIGINT, handle)
    try:
        yield drain
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
