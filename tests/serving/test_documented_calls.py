"""The page on serving lists every call of the providers' clients that is tested."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_lists_the_calls_that_are_tested() -> None:
    page = (ROOT / "docs/howto/serve.md").read_text()
    num_calls = 0
    for path in (ROOT / "tests/serving/sdk").glob("test_*.py"):
        names = [name.replace("_", " ") for name in re.findall(r"^def call_(\w+)", path.read_text(), re.MULTILINE)]
        assert f"({len(names)}): {', '.join(names)}." in page, path.name
        num_calls += len(names)
    assert num_calls >= 65
