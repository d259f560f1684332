"""The description and the licence files of a wheel, where the breakage is about them.

Reads a wheel, and the released and the broken ``pyproject.toml``. Guarantees: nothing is asked for that the broken line
does not name, because honest repairs by other tools lose what nobody promised.
"""

import re
import tomllib
from pathlib import Path

from repairgym.tasks.build.wheels import Wheel, WheelError

_FIELD = re.compile(r"\s*(readme|license-files)\s*=")


def check_description(wheel: Wheel, tree: Path, released: str, broken: str) -> None:
    """Check that ``wheel`` holds what the ``released`` lines that ``broken`` lacks take from ``tree``.

    Raises:
        WheelError: the description is not the text of the readme, or a licence file is absent.
    """
    left = broken.splitlines()
    fields = {match[1] for line in released.splitlines() if line not in left and (match := _FIELD.match(line))}
    project = tomllib.loads(released).get("project", {}) if fields else {}
    if "readme" in fields:
        readme = project["readme"]
        name = readme if isinstance(readme, str) else readme.get("file", "")
        described = re.split(rb"\r?\n\r?\n", wheel.metadata, maxsplit=1)[-1]
        if (tree / name).is_file() and (tree / name).read_bytes().split() != described.split():
            raise WheelError(f"the description of the wheel is not the text of {name}, as released")
    if "license-files" in fields:
        held = {data for name, data in wheel.files.items() if name.startswith(f"{wheel.info}/")}
        for path in (path for pattern in project["license-files"] for path in sorted(tree.glob(pattern))):
            if path.is_file() and path.read_bytes() not in held:
                raise WheelError(f"the wheel lacks the licence file {path.relative_to(tree)}, which the release has")
