"""Description and licence files of a wheel, where the breakage is about them."""

from __future__ import annotations

from pathlib import Path

import pytest

from repairgym.tasks.build.descriptions import check_description
from repairgym.tasks.build.wheels import Wheel, WheelError

RELEASED = '[project]\nname = "tiny"\nreadme = "README.md"\nlicense-files = ["LIC*"]\n'
HEAD = b"Metadata-Version: 2.4\nName: tiny\n"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "README.md").write_text("# Tiny\n\nA project.\n")
    (tmp_path / "LICENSE").write_text("MIT\n")
    return tmp_path


def wheel(body: bytes = b"", licence: bytes | None = None) -> Wheel:
    files = {"tiny-1.dist-info/METADATA": HEAD + b"\n" + body}
    if licence is not None:
        files["tiny-1.dist-info/licenses/LICENSE"] = licence
    return Wheel("tiny-1-py3-none-any.whl", "tiny-1.dist-info", files)


@pytest.mark.parametrize(
    ("broken", "wanting"),
    [
        (RELEASED.replace("README.md", "README.dm"), {"the description"}),
        (RELEASED.replace("LIC*", "LCI*"), {"the licence file LICENSE"}),
        (RELEASED.replace("tiny", "ynit"), set()),
        ("", {"the description", "the licence file LICENSE"}),
    ],
)
def test_what_the_broken_line_names_has_to_be_there(broken: str, wanting: set[str], tree: Path) -> None:
    text = b"# Tiny\r\n\r\nA project."
    check_description(wheel(text, b"MIT\n"), tree, RELEASED, broken)
    for name, lacking in (("the description", wheel(b"", b"MIT\n")), ("the licence file LICENSE", wheel(text, b"M"))):
        if name not in wanting:
            check_description(lacking, tree, RELEASED, broken)
            continue
        with pytest.raises(WheelError, match=name):
            check_description(lacking, tree, RELEASED, broken)
