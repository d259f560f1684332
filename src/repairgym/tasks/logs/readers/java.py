"""Errors of Java's and Kotlin's compilers and tests, of Maven and of Gradle."""

import re
from collections.abc import Iterator

from repairgym.records import ErrorClass, MainError
from repairgym.tasks.logs.readers.base import Lines, Reader, block_after, error, first_class

Rules = tuple[tuple[str, ErrorClass], ...]
_COMPILER_CLASSES: Rules = (
    (r"package \S+ does not exist|class file for \S+ not found|module not found|cannot access \S+$", "dependency"),
    (r"release version \S+ not supported|invalid (?:source|target) release|class file has wrong version", "version"),
    (r"(?:file|directory) not found: |no source files|does not exist$", "environment"),
    (r"invalid (?:flag|argument)|unknown option|option .* (?:not|requires)", "configuration"),
)
_COMPILER = re.compile(
    r"^(?:\[ERROR\] +|e: |:[\w:-]+(?=/))?(?:file://)?(?P<path>[^\s:][^:]*\.(?:java|kts?)):?"
    r"(?::(?P<line>\d+):(?:\d+:)? (?=error: )|\[(?P<line2>\d+),\d+\] |(?: \("
    r"|:)(?P<line3>\d+)[,:] ?\d+\)?:? (?!error: |warning: ))"
    r"(?P<message>(?!warning: ).+)$"
)
_COMPILER_ALONE = re.compile(
    r"^(?P<message>error: (?:release version|file not found: |invalid (?:flag|source|target)"
    r"|source file or directory not|"
    r"option |no source files|module not found|unknown option).*)"
)
_SYMBOL = re.compile(r"^(?:\[ERROR\])?\s+symbol: +(?P<symbol>.+)$")


def _read_compiler(lines: Lines) -> Iterator[MainError]:
    for index, line in enumerate(lines):
        match = _COMPILER.match(line) or _COMPILER_ALONE.match(line)
        if match is None or line.startswith("w: "):
            continue
        places = match.groupdict()
        message = match["message"]
        if message.endswith("cannot find symbol"):
            symbols = (hit["symbol"] for text in lines[index + 1 : index + 5] if (hit := _SYMBOL.match(text)))
            symbol = next(symbols, "")
            message += f": {symbol}" if symbol else ""
        name = first_class(_COMPILER_CLASSES, message, "build_tool")
        number = places.get("line") or places.get("line2") or places.get("line3")
        yield error(name, message, places.get("path"), number)


# --- tests ---------------------------------------------------------------------------------------------------------

_SUREFIRE = re.compile(
    r"^\[ERROR\] +(?!Tests run)(?P<test>[\w.$\[\]{}, ()=-]+?)(?:\((?P<owner>[\w.$]+)\))?\s+(?:-- )?Time"
    r" elapsed: .*<<< (?:FAILURE|ERROR)!"
)
_GRADLE_TEST = re.compile(r"^(?P<owner>[\w.$]+) > (?P<test>.+?) FAILED$")
_FRAME = re.compile(
    r"^\s*at (?:[\w.]+/+)?(?P<owner>[\w.$]+)\.[\w$<>]+\((?P<file>\w+\.(?:java|kt|groovy)):(?P<line>\d+)\)"
)
_FOREIGN_FRAME = re.compile(
    r"(?:java|javax|jdk|sun|kotlin|groovy|junit|org\.(?:junit|hamcrest|mockito|assertj|opentest4j|apache\.maven|gradle|codehaus))\."
)
_AT_PLACE = re.compile(r"^\s*(?P<message>[\w.$]+(?:Error|Exception|Failure)?) at (?P<file>\w+\.\w+):(?P<line>\d+)$")


def _read_tests(lines: Lines) -> Iterator[MainError]:
    for index, line in enumerate(lines):
        match = _SUREFIRE.match(line) or _GRADLE_TEST.match(line)
        if match is None:
            continue
        test, owner = match["test"], match["owner"] or ""
        if not owner:
            owner, _, test = test.rpartition(".")
        block = block_after(lines, index, r"\[(?:ERROR|INFO)\]|\S.* FAILED$|\S+ > |\d+ tests? completed")
        message = next((text.strip() for text in block if text.strip()), "the test failed")
        if brief := _AT_PLACE.match(message):
            path = f"{brief['file']}::{test}" if brief["file"].startswith(owner.rpartition(".")[2]) else brief["file"]
            yield error("test", brief["message"], path, brief["line"])
            continue
        path, number = _test_place(block, owner, test)
        yield error("test", message, path, number)


def _test_place(block: Lines, owner: str, test: str) -> tuple[str, str | None]:
    """Return file and line of the first frame of the project; of a test's own file with the name of the test."""
    for text in block:
        frame = _FRAME.match(text)
        if frame and not _FOREIGN_FRAME.match(frame["owner"]):
            folder = frame["owner"].rpartition(".")[0].replace(".", "/")
            path = f"{folder}/{frame['file']}" if folder else frame["file"]
            is_test = frame["owner"].split("$")[0] == owner.split("$")[0]
            return (f"{path}::{test}" if is_test else path), frame["line"]
    return f"{owner.split('$')[0].replace('.', '/')}.java::{test}", None


# --- Maven and Gradle themselves -----------------------------------------------------------------------------------

_MAVEN_CLASSES: Rules = (
    (
        r"Unrecognised tag|Non-parseable|Malformed|Child module|Duplicated tag|Unknown lifecycle|no POM in this",
        "configuration",
    ),
    (
        (
            r"Could not find goal|No goals have been|Unrecognized option|must be a valid|is either not"
            r"|Unable to parse command"
        ),
        "configuration",
    ),
    (
        (
            r"invalid (?:target|source) release|release version \S+ not supported|requires? (?:Maven|Java"
            r"|JDK)|Detected (?:JDK|Maven)"
        ),
        "version",
    ),
    (r"could not be resolved|[Cc]ould not resolve|Non-resolvable|No plugin found|artifact |dependenc", "dependency"),
    (r"No such file|does not exist|OutOfMemory|Connection|Unknown host", "environment"),
)
_MAVEN_POM = re.compile(
    r"^\[(?:ERROR|FATAL)\] +(?:\[(?:ERROR|FATAL)\] +)?(?P<message>(?:Non-parseable POM|Malformed POM"
    r"|Non-resolvable|Child module"
    r"|Duplicated tag|Unrecognised tag|'[\w.()\[\]]+' ).+?)(?: @ (?:\S+ )?(?:\S+, )?line (?P<line>\d+), column \d+)?$"
)
_MAVEN_PLACE = re.compile(r"POM (?P<path>/\S+?):|of (?P<path2>/\S+pom\.xml)|The project \S+ \((?P<path3>/[^)]+)\) has")
_MAVEN = re.compile(
    r"^(?:\[ERROR\] +)?(?P<message>(?:Failed to execute goal|Plugin \S+ or one|Unknown lifecycle"
    r"|No plugin found|The goal you"
    r"|Could not find goal|No goals have|Unable to parse command line options|Error resolving version"
    r"|The project \S+ has|\[ERROR\]).*)$"
)
_MAVEN_ABOUT = re.compile(r"Compilation failure|There (?:are|were) test failures|: Compilation error")
_MAVEN_CAUSE = re.compile(
    r"(?P<message>(?:Could not find artifact|[Tt]he artifact|Failure to find"
    r"|The following artifacts could not be resolved:?|"
    r"Fatal error compiling|Could not find goal|Plugin \S+ or one of its dependencies could not be resolved) .*)"
)


def _read_maven(lines: Lines) -> Iterator[MainError]:
    poms = [match for line in lines if (match := _MAVEN_POM.match(line))]
    place = next((match for line in lines if (match := _MAVEN_PLACE.search(line))), None)
    path = next(filter(None, place.groups()), "") if place else ""
    seen: set[str] = set()
    for match in poms:
        message = match["message"]
        if message in seen or (cause := re.search(r" @ ?$", message)):
            continue
        seen.add(message)
        position = re.search(r"@(\d+):\d+\)?|line (\d+)", message)
        number = match["line"] or (next(filter(None, position.groups())) if position else None)
        name = first_class(_MAVEN_CLASSES, message, "configuration")
        cause = _MAVEN_CAUSE.search(message) if name == "dependency" else None
        yield error(name, cause["message"] if cause else message, path, number)
    for line in lines if not poms else ():
        match = _MAVEN.match(line)
        if match is None or _MAVEN_ABOUT.search(line):
            continue
        message = match["message"].partition(" -> [Help")[0].removeprefix("Unable to parse command line options: ")
        if message.startswith("Plugin "):
            message = message.partition(": ")[0]
        cause = _MAVEN_CAUSE.search(message.partition(": ")[2])
        goal = re.match(r"Failed to execute goal (?:\S+ )?(?:\([^)]*\) )?on project [^:]+: (?P<message>.+)", message)
        message = cause["message"] if cause else goal["message"] if goal else message
        yield error(first_class(_MAVEN_CLASSES, message, "build_tool"), message)
        return


_GRADLE_CLASSES: Rules = (
    (r"[Cc]ould not find method|[Cc]ould not get unknown property", "build_tool"),
    (
        (
            r"[Cc]ould not (?:find|resolve)|No (?:cached|matching) (?:version|variant)|was not found in any"
            r"|with id \S+ not found|external dependency"
        ),
        "dependency",
    ),
    (r"[Dd]ependency verification|Conflict|[Cc]annot choose between", "dependency"),
    (
        (
            r"Task .* not found|Project .* not found|[Pp]roject (?:with path|directory)|Circular dependency"
            r"|command-line option|is ambiguous"
        ),
        "configuration",
    ),
    (
        (
            r"[Jj]ava version|Unsupported class file|class file major|requires? at least|[Ii]ncompatible"
            r"|Java \d+ or (?:later|above)"
        ),
        "version",
    ),
    (
        (
            r"Cannot run program|starting process|No such file|does not exist|disappeared|heap space"
            r"|Could not (?:connect|GET)"
        ),
        "environment",
    ),
)
_GRADLE_WHERE = re.compile(
    r"^(?:Build|Settings|Script|Initialization script"
    r"|Precompiled script plugin)\b.* '(?P<path>[^']+)' line: (?P<line>\d+)"
)
_GRADLE_SCRIPT = re.compile(
    r"^\s*(?:build|settings|script"
    r"|initialization script) (?:file )?'(?P<path>[^']+)': (?P<line>\d+): (?P<message>.+?)(?: @ line .*)?$"
)
_KOTLIN_SCRIPT = re.compile(r"^\s*Line (?P<line>\d+): .*$")


def _read_gradle(lines: Lines) -> Iterator[MainError]:
    path, number = "", None
    for index, line in enumerate(lines):
        if line.startswith("Unknown command-line option"):
            yield error("configuration", line)
        elif match := _GRADLE_WHERE.match(line):
            path, number = match["path"], match["line"]
        if line.startswith("* What went wrong:"):
            block = block_after(lines, index, r"\* (?:Try|Exception|Get more)")
            for message in _gradle_causes(block):
                script = _GRADLE_SCRIPT.match(message)
                if script:
                    message, path, number = script["message"], script["path"], script["line"]
                yield error(first_class(_GRADLE_CLASSES, message, "build_tool"), message, path, number)


def _gradle_causes(block: Lines) -> list[str]:
    """Return the deepest causes of a block; of a script that does not compile its first error."""
    causes = [(len(match[1]), index) for index, text in enumerate(block) if (match := re.match(r"^( *)> \S", text))]
    if not causes:
        return _compiler_lines(block) or [next((text.strip() for text in block if text.strip()), "")]
    depth = max(depth for depth, _ in causes)
    deepest = [index for each, index in causes if each == depth]
    if "startup failed" in block[deepest[0]] or "Script compilation error" in block[deepest[0]]:
        return _compiler_lines(block) or [block[deepest[0]].strip(" >")]
    return [block[index].strip().removeprefix("> ") for index in deepest]


def _compiler_lines(block: Lines) -> list[str]:
    return [text for text in block if _GRADLE_SCRIPT.match(text)][:1]


COMPILER = Reader(
    "javac",
    re.compile(
        r"(?:"
        + _COMPILER.pattern.removeprefix("^")
        + "|"
        + _COMPILER_ALONE.pattern.removeprefix("^").replace("?P<message>", "?:")
        + ")"
    ),
    _read_compiler,
)
TESTS = Reader("surefire", re.compile(r".*<<< (?:FAILURE|ERROR)!|[\w.$]+ > .+ FAILED$"), _read_tests)
MAVEN = Reader("maven", re.compile(r"\[(?:ERROR|FATAL)\] |Unable to parse command line options"), _read_maven)
GRADLE = Reader("gradle", re.compile(r"\* What went wrong:|Unknown command-line option '"), _read_gradle)
