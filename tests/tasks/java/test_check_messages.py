"""What the check of a Java build says of a log."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

from repairgym.tasks.build.wheel_check import check_text
from repairgym.tasks.java.project import JAVA_EXPECTED, JAVA_TEST, expected_text

SCRIPT = """FAILURE: Build failed with an exception.

* Where:
Build file '{tree}/build.gradle' line: 31

* What went wrong:
Could not compile build file '{tree}/build.gradle'.
> startup failed:
  build file '{tree}/build.gradle': 31: unexpected token:  @ line 31, column 1.
     ^

  1 error

* Try:
Run with --stacktrace option to get the stack trace.
"""
DEPENDENCY = """* What went wrong:
Could not resolve all files for configuration ':testCompileClasspath'.
> Could not find junit:junit-api:4.13.2.
  Searched in the following locations:
      file:/opt/env/toolchain/usr/share/maven-repo/junit/junit-api/4.13.2/junit-api-4.13.2.pom
  Required by:
      project :

* Try:
Run with --stacktrace option to get the stack trace.
"""
PLUGIN = """* What went wrong:
Project with path ':core' could not be found in root project 'tiny'.

* Try:
Run with --stacktrace
"""
SOURCE = """> Task :compileJava FAILED
{tree}/src/main/java/A.java:5: error: cannot find symbol

* What went wrong:
Execution failed for task ':compileJava'.
> Compilation failed; see the compiler error output for details.

* Try:
"""


@pytest.fixture
def check(tmp_path: Path) -> ModuleType:
    """The check as a task has it, in a tree."""
    (tmp_path / JAVA_TEST).parent.mkdir()
    (tmp_path / JAVA_TEST).write_text(check_text(JAVA_TEST))
    expected = {"tool": "gradle", "jars": [], "classes": ["A.class"]}
    (tmp_path / JAVA_EXPECTED).write_text(expected_text(expected))
    assert json.loads((tmp_path / JAVA_EXPECTED).read_text()) == expected
    spec = importlib.util.spec_from_file_location("java_check", tmp_path / JAVA_TEST)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("log", "message"),
    [
        (SCRIPT, "build file 'build.gradle': 31: unexpected token:  @ line 31, column 1."),
        (DEPENDENCY, "Could not find junit:junit-api:4.13.2."),
        (PLUGIN, "Project with path ':core' could not be found in root project 'tiny'."),
        (SOURCE, "src/main/java/A.java:5: error: cannot find symbol"),
        (
            "[INFO] x\n[ERROR] COMPILATION ERROR : \n[ERROR] {tree}/A.java:[3,1] ';' expected\n",
            "A.java:[3,1] ';' expected",
        ),
        ("nothing known", "nothing known"),
    ],
)
def test_the_line_that_says_most_is_told(check: ModuleType, tmp_path: Path, log: str, message: str) -> None:
    assert check.first_error(log.replace("{tree}", str(tmp_path))) == message
