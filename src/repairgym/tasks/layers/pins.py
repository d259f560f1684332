"""What a pinned environment holds: the only versions there are for a task, because its sandbox has no network.

Reads the text of a lock; makes names and versions. Invariant: names are in their canonical form (PEP 503), and a line
whose marker does not hold on this machine names nothing.
"""

from __future__ import annotations

import re

from packaging.markers import Marker
from packaging.utils import canonicalize_name
from packaging.version import Version

_PIN = re.compile(r"^(?P<name>[A-Za-z0-9][\w.-]*)(?:\[[^\]]*\])?==(?P<version>[^\s;\\]+)\s*(?:;(?P<marker>[^\\]+))?")


def pinned_versions(lock: str) -> dict[str, Version]:
    """Canonical name -> version of every distribution that ``lock`` installs here."""
    found: dict[str, Version] = {}
    for line in lock.splitlines():
        match = _PIN.match(line)
        if match and (not match["marker"] or Marker(match["marker"].strip()).evaluate({"extra": ""})):
            found[canonicalize_name(match["name"])] = Version(match["version"])
    return found
