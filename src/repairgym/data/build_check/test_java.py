"""Builds a Java library with Maven or Gradle, looks at the classes, and runs its tests on them.

``expected.json`` beside this file names the build tool, the classes of a good build, the JUnit classes of the suite,
how many of its tests pass, and the jars that they need. Guarantees:

- The suite is compiled here from test sources that were read before the build, whose settings may leave it out and
  whose scripts may write to it. What a build leaves running is ended before anything else starts.
- The suite runs on what the build made, and on what the compiler alone makes of the same sources where that differs.
- Tested code has few permissions: it cannot reach into other classes, start programs or write files.
"""

from __future__ import annotations

import contextlib
import ctypes
import filecmp
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
TREE = HERE.parent
EXPECTED = json.loads((HERE / "expected.json").read_text(encoding="utf-8"))
PROGRAMS = Path(sys.prefix) / "bin"
TOOLCHAIN = Path(sys.prefix) / "toolchain"
SHARE = TOOLCHAIN / "usr/share"
JARS = [str(SHARE / "java" / name) for name in ("junit4.jar", "hamcrest-all.jar")]
JARS += [str(SHARE / "maven-repo" / path) for path in EXPECTED["jars"]]
COMMAND, OUTPUT, FOLDERS = {
    "maven": (("mvn", "test-compile"), "target", ("target/classes",)),
    "gradle": (("gradle", "testClasses"), "build", ("build/classes/java/main", "build/resources/main")),
}[EXPECTED["tool"]]
"""Command of the build, folder of all it makes, and folders of what it makes of the library."""
MAIN, TESTS = "src/main", "src/test"
RUNNER = """
import java.io.FileDescriptor;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.InputStream;
import java.io.PrintStream;
import java.util.HashSet;
import java.util.Set;
import org.junit.runner.Description;
import org.junit.runner.JUnitCore;
import org.junit.runner.Result;
import org.junit.runner.notification.Failure;
import org.junit.runner.notification.RunListener;

public final class SuiteRunner extends RunListener {
    private final Set<Description> unfinished = new HashSet<>();
    private int numPassed;

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
        SuiteRunner own = new SuiteRunner();
        JUnitCore core = new JUnitCore();
        core.addListener(own);
        Result result = core.run(classes);
        for (int i = 0; i < result.getFailureCount(); i++) {
            out.println((i + 1) + ") " + result.getFailures().get(i).getTestHeader());
        }
        out.println(secret + " " + own.numPassed + " " + result.getFailureCount());
        Runtime.getRuntime().halt(0);
    }

    @Override
    public void testAssumptionFailure(Failure failure) {
        unfinished.add(failure.getDescription());
    }

    @Override
    public void testFailure(Failure failure) {
        unfinished.add(failure.getDescription());
    }

    @Override
    public void testFinished(Description description) {
        if (!unfinished.contains(description)) {
            numPassed++;
        }
    }
}
"""
"""Runs the suite and says behind a secret how it ended, so that an exit, a printed line or a replaced class of the
tested code says nothing."""
POLICY = """
grant codeBase "file:{toolchain}/-" {{ permission java.security.AllPermission; }};
grant codeBase "file:{suite}/-" {{ permission java.security.AllPermission; }};
grant {{
    permission java.util.PropertyPermission "*", "read";
    permission java.io.FilePermission "<<ALL FILES>>", "read";
    permission java.lang.RuntimePermission "getenv.*";
}};
"""
"""Rights of the JVM's code: tested code reads, and does nothing else to the outside."""
_NOT_DUMPABLE = (4, 0)
"""Arguments of prctl: no other process of this user can read or write the memory of this one."""
MADE: list[Made | str] = []
"""Result of the one build for all tests, or why there is none."""


class Made:
    """Copies of what a build made, and of what it was made of."""

    def __init__(self, sources: dict[str, bytes]) -> None:
        self.place = Path(tempfile.mkdtemp())
        self.classes, self.plain = self.place / "classes", self.place / "plain"
        for path, content in sources.items():
            target = self.place / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        self.classes.mkdir()
        for folder in FOLDERS:
            if (TREE / folder).is_dir():
                shutil.copytree(TREE / folder, self.classes, dirs_exist_ok=True)


def first_error(log: str) -> str:
    """The line of a log that says most: a place in a source, or the first error."""
    lines = [line.partition("[ERROR] ")[2].strip() for line in log.splitlines() if "[ERROR] " in line]
    places = [line.replace(f"{TREE}/", "") for line in lines if ".java:[" in line]
    told = [line for line in lines if line and not line.startswith(("COMPILATION ERROR", "---"))]
    places += [line.replace(f"{TREE}/", "") for line in log.splitlines() if ".java:" in line and ": error: " in line]
    told += gradle_errors(log)
    return (places or told or log.strip().splitlines()[-1:] or ["the build printed nothing"])[0]


def gradle_errors(log: str) -> list[str]:
    """Return what Gradle says went wrong: places in a script, then the deepest cause."""
    block = log.partition("* What went wrong:\n")[2].partition("\n* ")[0].replace(f"{TREE}/", "").splitlines()
    scripts = [line.strip() for line in block if re.match(r" *\w+ file '[^']+': \d+: ", line)]
    causes = [line.strip(" >") for line in reversed(block) if line.lstrip().startswith("> ")]
    return [*scripts, *causes, *(line for line in block if line)]


def read_sources() -> dict[str, bytes]:
    """Path -> content of what is below `MAIN` and `TESTS`; links lead nowhere."""
    roots = (TREE / name for name in (MAIN, TESTS))
    files = (path for root in roots for path in sorted(root.rglob("*")) if path.is_file() and not path.is_symlink())
    return {path.relative_to(TREE).as_posix(): path.read_bytes() for path in files}


def processes() -> set[int]:
    """Ids of the processes in sight."""
    return {int(name) for name in os.listdir("/proc") if name.isdigit()}


def end_others(known: set[int]) -> None:
    """End all processes but those ``known``; one that starts others faster than they end is an error."""
    for _ in range(50):
        others = processes() - known
        alive = [pid for pid in others if not is_ended(pid)]
        if not alive:
            return
        for kind in (signal.SIGSTOP, signal.SIGKILL):
            for pid in alive:
                with contextlib.suppress(OSError):
                    os.kill(pid, kind)
        time.sleep(0.02)
    raise AssertionError("the build left processes behind that do not end")


def is_ended(pid: int) -> bool:
    """Return whether a process is gone, or waits for its parent only."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8", errors="replace").rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return not Path(f"/proc/{pid}").exists()


def built() -> Made:
    """Result of the one build."""
    if not MADE:
        ctypes.CDLL(None).prctl(*_NOT_DUMPABLE, 0, 0, 0)
        sources, known = read_sources(), processes()
        shutil.rmtree(TREE / OUTPUT, ignore_errors=True)
        command = [str(PROGRAMS / COMMAND[0]), *COMMAND[1:]]
        done = subprocess.run(command, cwd=TREE, capture_output=True, text=True, errors="replace")
        end_others(known)
        sys.stdout.write(done.stdout + done.stderr)
        if done.returncode != 0:
            MADE.append(first_error(done.stdout + done.stderr))
        elif not (TREE / FOLDERS[0]).is_dir():
            MADE.append("the build made no classes")
        else:
            MADE.append(Made(sources))
    made = MADE[0]
    if isinstance(made, str):
        raise AssertionError(made)
    return made


def names(folder: Path) -> list[str]:
    """Classes below a folder, without those that a compiler numbers."""
    paths = (path.relative_to(folder).as_posix() for path in folder.rglob("*.class"))
    return sorted(path for path in paths if not path.rpartition("$")[2].split(".")[0].isdigit())


def run(program: str, *arguments: str, cwd: Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """A program of the toolchain."""
    command = [str(PROGRAMS / program), *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, errors="replace", input=stdin)


def compile_sources(made: Made, target: Path, path: list[str], *arguments: str) -> None:
    """Compile into an empty folder; no class stands for a source of the suite."""
    shutil.rmtree(target, ignore_errors=True)  # a canary runs a copy of a test after it
    target.mkdir()
    options = ("-encoding", EXPECTED["encoding"], "-nowarn", "-proc:none", "-Xprefer:source", "-cp", ":".join(path))
    done = run("javac", *options, "-d", str(target), *arguments, cwd=made.place)
    assert done.returncode == 0, first_error(done.stderr)


def run_suite(made: Made, classes: Path) -> int:
    """Run the suite on ``classes``; return how many tests pass."""
    suite, secret = Path(tempfile.mkdtemp(dir=made.place)), secrets.token_hex(16)
    runner, policy, compiled = suite / "SuiteRunner.java", suite / "policy", suite / "compiled"
    runner.write_text(RUNNER, encoding="utf-8")
    policy.write_text(POLICY.format(toolchain=TOOLCHAIN.resolve(), suite=compiled.resolve()), encoding="utf-8")
    sources = [str(runner), *(f"{TESTS}/java/{name}" for name in EXPECTED["suite"])]
    # The build's classes come last: none of them stands for one of JUnit, of the suite or of the runner.
    compile_sources(made, compiled, [*JARS, str(classes)], "-sourcepath", f"{TESTS}/java", *sources)
    tests = [name.removesuffix(".java").replace("/", ".") for name in EXPECTED["suite"]]
    path = ":".join([*JARS, str(compiled), str(classes), f"{TESTS}/resources"])
    options = ("-XX:+DisableAttachMechanism", "-Djava.security.manager", f"-Djava.security.policy=={policy}")
    done = run("java", *options, "-cp", path, "SuiteRunner", *tests, cwd=made.place, stdin=secret + "\n")
    lines = done.stdout.splitlines()
    ends = [line.split() for line in lines if line.startswith(f"{secret} ")]
    assert len(ends) == 1, "the suite did not come to its end"
    num_passed, num_failed = map(int, ends[0][1:])
    failed = [line for line in lines if line[:1].isdigit() and ") " in line]
    assert num_failed == 0, failed[0] if failed else f"{num_failed} tests of the suite fail"
    return num_passed


def compile_plainly(made: Made) -> None:
    """Compile the library without its build tool, into ``made.plain``."""
    level = str(EXPECTED["level"])
    sources = [path.relative_to(made.place).as_posix() for path in sorted((made.place / MAIN / "java").rglob("*.java"))]
    compile_sources(made, made.plain, JARS, "-g", "-source", level, "-target", level, *sources)


def is_same(made: Made) -> bool:
    """Return whether the build's classes are those that the compiler alone makes."""
    paths = [path.relative_to(made.classes) for path in made.classes.rglob("*.class")]
    return all(
        (made.plain / path).is_file() and filecmp.cmp(made.classes / path, made.plain / path, shallow=False)
        for path in paths
    )


def test_the_project_builds() -> None:
    assert built().classes.is_dir()


def test_all_classes_are_made() -> None:
    missing = sorted(set(EXPECTED["classes"]) - set(names(built().classes)))
    assert not missing, f"the build made no {missing[0]}"


def test_the_suite_passes() -> None:
    made = built()
    compile_plainly(made)
    folders = [made.classes]
    if not is_same(made):
        if (made.place / MAIN / "resources").is_dir():
            shutil.copytree(made.place / MAIN / "resources", made.plain, dirs_exist_ok=True)
        folders.append(made.plain)
    for folder in folders:
        num_passed = run_suite(made, folder)
        assert num_passed == EXPECTED["num_passed"], f"{num_passed} tests of the suite pass, not all"
    assert EXPECTED["num_passed"] > 0, "the suite has no tests"


if __name__ == "__main__":
    state = built()
    found = {"classes": names(state.classes), "num_passed": run_suite(state, state.classes)}
    print("\nfound " + json.dumps(found))
