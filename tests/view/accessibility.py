"""axe-core, installed through npm into ``build/`` for the browser tests; nothing of it is committed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

VERSION = "4.14.1"
FOLDER = Path(__file__).parents[2] / "build" / f"axe-core-{VERSION}"
RUN = """window.seen = axe.run(document, {resultTypes: ['violations']}).then(found => found.violations
  .filter(one => ['serious', 'critical'].includes(one.impact))
  .map(one => `${one.id}: ${one.nodes.slice(0, 3).map(node => node.target.join(' ')).join(', ')}`))"""
"""Serious and critical faults of a page; axe's other impacts are minor and moderate.

The page holds the promise: it would be collected before it is kept."""


def axe_source() -> str:
    """Return the text of axe-core; empty where npm is absent or cannot get it."""
    script = FOLDER / "node_modules" / "axe-core" / "axe.min.js"
    if not script.is_file() and shutil.which("npm"):
        FOLDER.mkdir(parents=True, exist_ok=True)
        options = ["--no-audit", "--no-fund", "--ignore-scripts", "--no-save", "--prefix", str(FOLDER)]
        subprocess.run(
            ["npm", "install", *options, f"axe-core@{VERSION}"], check=False, timeout=300, capture_output=True
        )
    return script.read_text(encoding="utf-8") if script.is_file() else ""
