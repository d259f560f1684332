from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from repairgym.tasks.layers.wheel_names import Use, WheelNames, read_uses

FILES = {
    "lib/__init__.py": """
from .core import *
from .core import _hidden
from . import inner
from ._fast import anything
if True:
    CONSTANT, other = 1, 2
try:
    import json
except ImportError:
    fallback = None
with open("x") as handle:
    pass
def __getattr__(name):
    return {"lazy": 1}[name]
""",
    "lib/core.py": "class Core:\n    def method(self): ...\ndef _hidden(): ...\n",
    "lib/inner.py": "from .compiled import *\n",
    "lib/made.py": "globals().update(x=1)\n",
    "lib/plain.py": "x: int = 1\n",
    "lib/_fast.cpython-311-x86_64-linux-gnu.so": "",
    "lib-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: lib\nRequires-Dist: more>=1\n\ntext\n",
}


@pytest.fixture
def wheel(tmp_path: Path) -> WheelNames:
    path = tmp_path / "lib-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in FILES.items():
            archive.writestr(name, text)
    return WheelNames(path)


def test_only_what_is_certainly_absent_is_lacking(wheel: WheelNames) -> None:
    assert wheel.tops == {"lib"}
    assert wheel.requirements == ("more>=1",)
    there = ("Core", "_hidden", "inner", "anything", "CONSTANT", "json", "fallback", "handle", "lazy", "__version__")
    assert not [name for name in there if wheel.lacks(f"lib.{name}")]
    unknown = ("lib.inner.whatever", "lib.made.whatever", "lib._fast.whatever", "lib.Core.method", "lib.Core.nothing")
    assert not [name for name in unknown if wheel.lacks(name)]
    assert [
        name for name in ("lib.gone", "lib.gone.part", "lib.plain.y", "lib.core.lazy") if not wheel.lacks(name)
    ] == []


def test_uses_are_imports_and_attributes_that_nothing_guards() -> None:
    code = """
import lib
import lib.core as core
from lib import gone as local, kept
from . import own
try:
    from lib import guarded
except (ImportError, SyntaxError):
    guarded = None
if sys.version_info < (3,):
    from lib import old
def function():
    from lib.plain import *
    return lib.deep.name + core.Core().method() + local.part + unknown.name
"""
    assert {use for use in read_uses(code) if "Core" not in use.dotted} == {
        Use("lib", "lib"),
        Use("lib.core", "core"),
        Use("lib.gone", "local"),
        Use("lib.kept", "kept"),
        Use("lib.plain", "*"),
        Use("lib.deep.name", "name"),
        Use("lib.gone.part", "part"),
    }
    assert Use("lib.core.Core", "Core") in read_uses(code)
    with pytest.raises(SyntaxError):
        read_uses("print 'two'")
