"""Builds a Java library with Maven, looks at the classes, and runs its tests on them.

``expected.json`` beside this file names the classes of a good build, the JUnit classes of the suite and the jars that
they need. The suite is compiled here from the test sources and not taken from the build, whose settings may leave it
out.
"""

from __future__ import annotations

import json
import secrets
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
TREE = HERE.parent
EXPECTED = json.loads((HERE / "expected.json").read_text(encoding="utf-8"))
PROGRAMS = Path(sys.prefix) / "bin"
SHARE = Path(sys.prefix) / "toolchain/usr/share"
JARS = [str(SHARE / "java" / name) for name in ("junit4.jar", "hamcrest-all.jar")]
JARS += [str(SHARE / "maven-repo" / path) for path in EXPECTED["jars"]]
RUNNER = """
import java.io.FileDescriptor;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.InputStream;
import java.io.PrintStream;
import org.junit.runner.JUnitCore;
import org.junit.runner.Result;

public final class SuiteRunner {
    public static void main(String[] names) throws Exception {
        // Own streams, and no buffer that keeps the secret: tested code can replace and read those of System.
        PrintStream out = new PrintStream(new FileOutputStream(FileDescriptor.out), true);
        InputStream in = new FileInputStream(FileDescriptor.in);
        StringBuilder secret = new StringBuilder();
        for (int c = in.read(); c != '\\n' && c >= 0; c = in.read()) {
            secret.append((char) c);
        }
        Class<?>[] classes = new Class<?>[names.length];
        for (int i = 0; i < names.length; i++) {
            classes[i] = Class.forName(names[i], false, SuiteRunner.class.getClassLoader());
        }
        Result result = new JUnitCore().run(classes);
        for (int i = 0; i < result.getFailureCount(); i++) {
            out.println((i + 1) + ") " + result.getFailures().get(i).getTestHeader());
        }
        out.println(secret + " " + result.getRunCount() + " " + result.getFailureCount());
        Runtime.getRuntime().halt(0);
    }
}
"""
"""Runs the suite and says behind a secret how it ended, so that an exit, a printed line or a replaced class of the
tested code says nothing."""
MADE: list[Path | str] = []
"""The folder of the classes, or why there is none; one build for all tests."""


def first_error(log: str) -> str:
    """The line of a log that says most: a place in a source, or the first error."""
    lines = [line.partition("[ERROR] ")[2].strip() for line in log.splitlines() if "[ERROR] " in line]
    places = [line.replace(f"{TREE}/", "") for line in lines if ".java:[" in line]
    told = [line for line in lines if line and not line.startswith(("COMPILATION ERROR", "---"))]
    return (places or told or log.strip().splitlines()[-1:] or ["the build printed nothing"])[0]


def built() -> Path:
    """Copy of the folder of the classes of the one build."""
    if not MADE:
        shutil.rmtree(TREE / "target", ignore_errors=True)
        done = subprocess.run([str(PROGRAMS / "mvn"), "test-compile"], cwd=TREE, capture_output=True, text=True)
        sys.stdout.write(done.stdout + done.stderr)
        folder, place = TREE / "target" / "classes", Path(tempfile.mkdtemp()) / "classes"
        if done.returncode != 0:
            MADE.append(first_error(done.stdout + done.stderr))
        elif not folder.is_dir():
            MADE.append("the build made no classes")
        else:
            shutil.copytree(folder, place)
            MADE.append(place)
    made = MADE[0]
    if isinstance(made, str):
        raise AssertionError(made)
    return made


def names(folder: Path) -> list[str]:
    """Classes below a folder, without those that a compiler numbers."""
    paths = (path.relative_to(folder).as_posix() for path in folder.rglob("*.class"))
    return sorted(path for path in paths if not path.rpartition("$")[2].split(".")[0].isdigit())


def run(program: str, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """A program of the toolchain."""
    command = [str(PROGRAMS / program), *arguments]
    return subprocess.run(command, cwd=TREE, capture_output=True, text=True, errors="replace", input=stdin)


def test_the_project_builds() -> None:
    assert built().is_dir()


def test_all_classes_are_made() -> None:
    missing = sorted(set(EXPECTED["classes"]) - set(names(built())))
    assert not missing, f"the build made no {missing[0]}"


def test_the_suite_passes() -> None:
    classes, place, secret = built(), Path(tempfile.mkdtemp()), secrets.token_hex(16)
    runner = place / "SuiteRunner.java"
    runner.write_text(RUNNER, encoding="utf-8")
    encoding = ("-encoding", EXPECTED["encoding"], "-nowarn", "-proc:none")
    sources = [str(runner), *(f"src/test/java/{name}" for name in EXPECTED["suite"])]
    # The build's classes come last: none of them stands for one of JUnit, of the suite or of the runner.
    path = ":".join([*JARS, str(classes)])
    done = run("javac", *encoding, "-cp", path, "-sourcepath", "src/test/java", "-d", str(place), *sources)
    assert done.returncode == 0, first_error("\n".join(f"[ERROR] {line}" for line in done.stderr.splitlines()))
    suite = [name.removesuffix(".java").replace("/", ".") for name in EXPECTED["suite"]]
    path = ":".join([*JARS, str(place), str(classes), str(TREE / "src/test/resources")])
    done = run("java", "-cp", path, "SuiteRunner", *suite, stdin=secret + "\n")
    lines = done.stdout.splitlines()
    ends = [line.split() for line in lines if line.startswith(f"{secret} ")]
    assert len(ends) == 1, "the suite did not come to its end"
    num_run, num_failed = map(int, ends[0][1:])
    failed = [line for line in lines if line[:1].isdigit() and ") " in line]
    assert num_failed == 0, failed[0] if failed else f"{num_failed} tests of the suite fail"
    assert num_run > 0, "the suite has no tests"


if __name__ == "__main__":
    print("\nclasses " + json.dumps(names(built())))
