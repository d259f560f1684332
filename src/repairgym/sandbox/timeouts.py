"""How long the host waits for what runs inside, and when a passed deadline says nothing about the code.

Reads answers of the trusted process inside. Invariant: the host outlasts every deadline that is kept inside
(:mod:`.guest.deadlines`), so that a deadline is the code's own, or the machine's trouble, never a lost answer.
"""

from __future__ import annotations

from typing import Any

from repairgym.errors import SandboxError
from repairgym.sandbox.guest.deadlines import MAX_EXTENSION_S

GRACE_S = 30.0
"""Seconds that an answer may take beyond what was asked for."""


def answer_timeout_s(timeout_s: float) -> float:
    """Seconds to wait for the answer to a command with a deadline of ``timeout_s``."""
    return timeout_s + MAX_EXTENSION_S + GRACE_S


def check_had_time(answer: dict[str, Any], timeout_s: float) -> None:
    """Take ``is_starved`` out of ``answer``.

    Raises:
        SandboxError: it is true: the deadline passed while what ran inside waited for a processor.
    """
    if answer.pop("is_starved"):
        raise SandboxError(
            f"a command with a deadline of {timeout_s:g} s hardly got a processor in {answer['duration_s']:.0f} s: "
            "the machine is too busy; run fewer things at once (rollout.max_in_flight, num_workers)"
        )
