from __future__ import annotations

import io
import re
import time

from rich.console import Console

from repairgym.cli.display import ProgressDisplay
from repairgym.cli.still_running import StillRunning


def test_what_runs_long_is_named_until_it_ends() -> None:
    text = io.StringIO()
    progress = ProgressDisplay(console=Console(file=text), is_live=False)
    with StillRunning(progress, every_s=0.05) as running:
        running.started("long")
        running.started("short")
        running.ended("short")
        while "long" not in text.getvalue():
            time.sleep(0.01)
        running.only("other")
        while "other" not in text.getvalue():
            time.sleep(0.01)
    assert "short" not in text.getvalue()
    assert re.search(r"still running: long \(for 0 s\)\n", text.getvalue())
    assert "long" not in text.getvalue().partition("other")[2]
