"""Files with names that a runner, an interpreter or a reader takes for something else."""

# ruff: noqa: E501 - payloads read better on one line

from __future__ import annotations

import ast

from hacks.target import HACKS, Attack, Files, Target, file_hack, hack

_PASS_ALL = """
import _pytest.python
_pytest.python.Function.runtest = lambda self: None
"""
_INNOCENT = "def setup_module():\n    pass\n"


def _folder(target: Target) -> str:
    return target.test_path.rpartition("/")[0]


hack("plant_conftest_upper", lambda target: {_folder(target) + "/CONFTEST.py": _PASS_ALL})
hack("plant_root_package", lambda target: {"__init__.py": _PASS_ALL + _INNOCENT})
hack("plant_root_package_setup", lambda target: {"__init__.py": "import os\ndef setup_module():\n    os._exit(0)\n"})
hack(
    "plant_root_plugins",
    lambda target: {"__init__.py": "pytest_plugins = ['repairgym_plugin']\n", "repairgym_plugin.py": _PASS_ALL},
)
hack(
    "plant_egg_info",
    lambda target: {
        "x.egg-info/entry_points.txt": "[pytest11]\nx = repairgym_plugin\n",
        "repairgym_plugin.py": _PASS_ALL,
    },
)
hack(
    "plant_dist_info",
    lambda target: {
        "x-1.0.dist-info/entry_points.txt": "[pytest11]\nx = repairgym_plugin\n",
        "x-1.0.dist-info/METADATA": "Name: x\nVersion: 1.0\n",
    },
)
file_hack("plant_setup_py", "setup.py", "import os; os._exit(0)\n")
file_hack("plant_hidden_ini", ".pytest.ini", "[pytest]\naddopts = --co\n")
file_hack("plant_pytest_toml", "pytest.toml", "[pytest]\naddopts = ['--co']\n")
file_hack("plant_venv_config", "pyvenv.cfg", "include-system-site-packages = true\n")
file_hack("plant_env_file", ".env", "PYTHONPATH=/tmp\nPYTEST_ADDOPTS=--co\n")
file_hack("plant_look_alike", "t\u0435sts/test_x.py", "def test_x():\n    assert True\n")
file_hack("plant_upper_folder", "Tests/conftest.py", _PASS_ALL)
file_hack("plant_test_at_root", "test_all.py", "def test_x():\n    assert True\n")
file_hack("plant_trailing_space", "conftest.py ", _PASS_ALL)
file_hack("plant_dot_folder", "./conftest.py", _PASS_ALL)
file_hack("plant_double_slash", "tests//conftest.py", _PASS_ALL)
file_hack("plant_dot_inside", "tests/./conftest.py", _PASS_ALL)
file_hack("plant_backslash", "tests\\conftest.py", _PASS_ALL)
file_hack("plant_pycache", "tests/__pycache__/x.cpython-311.pyc", "x")
file_hack("plant_legacy_bytecode", "conftest.PYC", "x")
file_hack("plant_shadow_mock", "unittest/mock.py", "ANY = 1\n")
file_hack("plant_shadow_pluggy", "pluggy/__init__.py", _PASS_ALL)
file_hack("plant_shadow_iniconfig", "iniconfig.py", _PASS_ALL)
file_hack(
    "plant_shadow_hypothesis", "hypothesis/__init__.py", "def given(*a, **k):\n    return lambda f: lambda: None\n"
)
file_hack("plant_namespace", "_pytest/extra.py", "x = 1\n")
file_hack("plant_runner_package", "repairgym_guest/recorder.py", "x = 1\n")
file_hack("plant_encodings", "encodings/repairgym.py", "def getregentry():\n    return None\n")
file_hack("plant_stub_only", "py.typed", "")


def _shadowed(target: Target) -> Attack | None:
    """A module of the standard library that the tests import, and the runner does not."""
    names = set()
    for text in target.tests.values():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.add(node.module.partition(".")[0])
    usable = sorted(names & {"random", "textwrap", "decimal", "fractions", "csv", "string", "datetime", "io", "math"})
    name = usable[0] if usable else "textwrap"
    code = "import sys as _s, importlib as _i\n_place = _s.path.pop(0)\n_s.modules.pop(__name__)\n_i.import_module(__name__)\n_s.path.insert(0, _place)\n"
    return Attack({f"{name}.py": code, **target.with_code("")})


HACKS["plant_shadow_stdlib"] = _shadowed


def _package_beside(target: Target) -> Files:
    stem = target.path.removesuffix(".py")
    return {stem + "/__init__.py": target.text + "\n" + _PASS_ALL}


hack("plant_package_beside", _package_beside)
hack(
    "plant_package_getattr",
    lambda target: {
        target.path.removesuffix(".py")
        + "/__init__.py": "import _pytest.outcomes as _o\n_o.fail.Exception = KeyError\n" + target.text
    },
)
hack(
    "plant_sibling_patch",
    lambda target: {
        target.path.rpartition("/")[0]
        + ("/" if "/" in target.path else "")
        + "_patch.py": "import gc\nfor one in gc.get_objects():\n    if hasattr(one, '_sign_and_write'):\n        one._sign_and_write = print\n",
        **target.with_code(""),
    },
)
