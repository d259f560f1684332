"""Errors of the tool chains of Go and Rust: compilers, tests, modules and manifests."""

import re
from collections.abc import Iterator

from repairgym.records import ErrorClass, MainError
from repairgym.tasks.logs.readers.base import Lines, Reader, block_after, error, first_class

Rules = tuple[tuple[str, ErrorClass], ...]

# --- Go ------------------------------------------------------------------------------------------------------------

_GO_CLASSES: Rules = (
    (
        r"go\.mod file not found|does not contain main module|cannot find main module|found packages|unknown directive",
        "configuration",
    ),
    (
        r"invalid go version|errors parsing go\.mod|usage: |build constraints exclude|malformed|flag provided but",
        "configuration",
    ),
    (r"requires go ?>?=? ?\d|module requires Go|toolchain not available", "version"),
    (
        (
            r"no required module provides|is not in (?:GOROOT|std)|missing go\.sum|replacement directory"
            r"|cannot find (?:module|package)"
        ),
        "dependency",
    ),
    (
        (
            r"unknown revision|module lookup disabled|updates to go\.(?:mod|sum)|checksum mismatch"
            r"|not found: module|inconsistent vendoring"
        ),
        "dependency",
    ),
    (r"no such file|dial tcp|i/o timeout|executable file not found", "environment"),
    (r"permission denied", "permission"),
)
_GO_LINE = re.compile(
    r"^(?:vet: )?(?:\./)?(?P<path>(?:/|[\w.@-]+/)*[\w.@-]+\.(?:go|mod)):(?P<line>\d+)(?::\d+)?: (?P<message>.+)$"
)
_GO_ALONE = re.compile(
    r"^(?:go: (?!downloading|finding|added|upgraded|to add|found|creating|extracting|warning)(?P<message>.+?)"
    r"|(?P<message2>found packages .+|package .+ is not in (?:GOROOT|std).*|pattern .+: .+"
    r"|build constraints exclude .+|flag provided but.+))$"
)
_GO_TEST = re.compile(r"^\s*--- FAIL: (?P<test>\S+)")
_GO_TEST_LINE = re.compile(r"^\s+(?P<path>[\w./-]+_?\w*\.go):(?P<line>\d+): (?P<message>.*)$")
_GO_PANIC = re.compile(r"^(?P<message>(?:panic|fatal error): .+?)(?: \[recovered\])?$")
_GO_FRAME = re.compile(r"^\s(?P<path>/\S+\.go):(?P<line>\d+)(?: \+0x[0-9a-f]+)?$")
_GO_FOREIGN = re.compile(r"/go-?[\d.]*/src/|/pkg/mod/|_testmain\.go|/lib/go|/usr/")


def _read_go(lines: Lines) -> Iterator[MainError]:
    panics = list(_go_panics(lines))
    tests = panics or list(_go_tests(lines))
    if tests:
        yield from tests
        return
    for index, line in enumerate(lines):
        match = _GO_LINE.match(line)
        if match:
            yield error(
                first_class(_GO_CLASSES, match["message"], "build_tool"), match["message"], match["path"], match["line"]
            )
        elif (match := _GO_ALONE.match(line)) and not line.endswith("errors parsing go.mod:"):
            message = match["message"] or match["message2"]
            yield error(first_class(_GO_CLASSES, message, "build_tool"), message)
        elif line.startswith("package ") and index + 1 < len(lines) and lines[index + 1].startswith("\timports "):
            chain = [text.strip() for text in block_after(lines, index, r"\S")]
            ends = chain[-1].partition(": ")[2] if chain else ""
            yield error("build_tool", f"{ends}: {line} {' '.join(chain)}" if ends else line)


def _go_tests(lines: Lines) -> Iterator[MainError]:
    for index, line in enumerate(lines):
        match = _GO_TEST.match(line)
        following = lines[index + 1] if index + 1 < len(lines) else ""
        place = _GO_TEST_LINE.match(following)
        if match and place:
            message = place["message"] or (lines[index + 2].strip() if index + 2 < len(lines) else "")
            yield error("test", message, f"{place['path']}::{match['test']}", place["line"])
        elif match and not _GO_TEST.match(following):
            yield error("test", f"{match['test']} failed", f"::{match['test']}")


def _go_panics(lines: Lines) -> Iterator[MainError]:
    for index, line in enumerate(lines):
        match = _GO_PANIC.match(line)
        if match is None or not any(text.startswith("goroutine ") for text in lines[index + 1 : index + 12]):
            continue
        frames = (hit for text in lines[index + 1 :] if (hit := _GO_FRAME.match(text)))
        own = next((frame for frame in frames if not _GO_FOREIGN.search(frame["path"])), None)
        is_test = any(text.startswith(("--- FAIL", "FAIL\t")) for text in lines)
        yield error(
            "test" if is_test else "other", match["message"], own["path"] if own else "", own["line"] if own else None
        )
        return


# --- Rust ----------------------------------------------------------------------------------------------------------

_CARGO_CLASSES: Rules = (
    (r"requires rustc|is not supported by the following|requires rust|feature `edition\d+` is required", "version"),
    (
        (
            r"unresolved import|can't find crate|no matching package|does not have (?:that|this"
            r"|the) feature|--locked|lock file"
        ),
        "dependency",
    ),
    (
        (
            r"failed to (?:select|get|load source)|unable to update"
            r"|use of unresolved module or unlinked crate|--frozen|checksum"
        ),
        "dependency",
    ),
    (
        (
            r"could not find `Cargo\.toml`|failed to parse|unexpected argument|no such (?:command"
            r"|subcommand)|TOML|duplicate key"
        ),
        "configuration",
    ),
    (
        (
            r"invalid (?:string|key|type|character)|missing field|unknown variant|no targets specified"
            r"|expected .*(?:newline|quote)"
        ),
        "configuration",
    ),
    (r"linker `\S+` not found|No such file|network|failed to (?:fetch|download)", "environment"),
)
_RUST = re.compile(r"^(?P<message>error(?P<code>\[E\d+\])?: (?P<text>.+))$")
_RUST_ARROW = re.compile(r"^\s*(?:-->|:::) (?P<path>\S+?):(?P<line>\d+)(?::\d+)?$")
_RUST_LABEL = re.compile(r"^\s*(?:\d+\s*)?\|.*?\^+ (?P<label>\S.*)$")
_RUST_ABOUT = re.compile(
    r"^(?:could not compile|aborting due to|\d+ targets? failed|test failed, to rerun|build failed|process didn't exit"
    r"|doctest failed|some tests failed)"
)
_PANIC = re.compile(
    r"^\s*thread '(?P<test>[^']+)'(?: \(\d+\))? panicked at (?:'(?P<old>.+)', )?(?P<path>[^\s:]+):(?P<line>\d+):\d+:?$"
)
_FAILED_TEST = re.compile(r"^test (?P<test>\S+)(?: - should panic)? \.\.\. FAILED$")
_NO_PANIC = re.compile(r"^note: test did not panic as expected(?: at (?P<path>\S+?):(?P<line>\d+):\d+)?")


def _read_cargo(lines: Lines) -> Iterator[MainError]:
    panics = list(_rust_panics(lines))
    if panics:
        yield from panics
        return
    for index, line in enumerate(lines):
        match = _RUST.match(line)
        if match is None or _RUST_ABOUT.match(match["text"]):
            continue
        block = block_after(lines, index, r"(?:error|warning)(?:\[|:)", 40)
        arrow = next((hit for text in block if (hit := _RUST_ARROW.match(text))), None)
        is_manifest = arrow is None or arrow["path"].endswith(".toml")
        if match["code"] or not is_manifest:
            label = next((hit["label"] for text in block if (hit := _RUST_LABEL.match(text))), "")
            message = f"{match['message']}: {label}" if match["code"] == "[E0308]" and label else match["message"]
            name = first_class(_CARGO_CLASSES[1:2], message, "build_tool")
            yield error(name, message, arrow["path"] if arrow else "", arrow["line"] if arrow else None)
        else:
            yield _cargo_itself(match["text"], block)


def _cargo_itself(text: str, block: Lines) -> MainError:
    """Return an error of cargo, of a manifest or of dependencies: its deepest cause."""
    arrow = next((hit for each in block if (hit := _RUST_ARROW.match(each))), None)
    causes = [block[i + 1 :] for i, each in enumerate(block) if each.strip() == "Caused by:"]
    message = " ".join([text, block[0].strip()]) if text.endswith(":") and block else text
    message = next((each for each in block if re.match(r"package .+ (?:depends on|requires) .+", each)), message)
    for cause in causes:
        first = next((each.strip() for each in cause if each.strip()), "")
        if message.startswith("failed to parse the"):
            message = f"{message}: {first}"
        elif first and not re.match(
            r"TOML parse error|No such file|process didn't exit|unable to update|failed to read", first
        ):
            message = first
        elif first.startswith("TOML parse error"):
            details = [
                each.strip()
                for each in cause
                if each.strip() and not re.match(r"\s*(?:\d+ )?\||\s*\||TOML parse", each.strip())
            ]
            message = details[0] if details else first
    place = re.search(r"`(?P<path>/\S*?Cargo\.toml)`|(?P<path2>/\S+/Cargo\.toml)", " ".join([text, *block[:6]]))
    line = re.search(r"TOML parse error at line (\d+)", "\n".join(block))
    is_manifest = "manifest" in text or "TOML" in "\n".join(block)
    path = arrow["path"] if arrow else (place["path"] or place["path2"]) if place and is_manifest else ""
    number = arrow["line"] if arrow else line[1] if line else None
    name = first_class(_CARGO_CLASSES, f"{text} {message}", "configuration" if path.endswith(".toml") else "build_tool")
    return error(name, message, path, number)


def _rust_panics(lines: Lines) -> Iterator[MainError]:
    for index, line in enumerate(lines):
        if match := _PANIC.match(line):
            message = match["old"] or next(
                (text.strip() for text in lines[index + 1 :] if text.strip()), "the test failed"
            )
            is_build = match["path"].endswith("build.rs")
            path = match["path"] if is_build or match["test"] == "main" else f"{match['path']}::{match['test']}"
            yield error("build_tool" if is_build else "test", message, path, match["line"])
        elif match := _NO_PANIC.match(line):
            test = next((hit["test"] for text in lines if (hit := _FAILED_TEST.match(text))), "")
            yield error("test", "test did not panic as expected", f"{match['path'] or ''}::{test}", match["line"])


GO = Reader(
    "go",
    re.compile(
        r"(?:vet: )?(?:\./)?[\w./@-]+\.go:\d+:(?:\d+:)? |go: [a-z/]|\S*go\.mod:\d+: |\s*--- FAIL: Test"
        r"|FAIL\t|goroutine \d+ \["
        r"|found packages \S+ \(|pattern \S+: "
        r"|package \S+ is not in (?:GOROOT|std)|package \S+\n?$|build constraints exclude"
    ),
    _read_go,
)
CARGO = Reader(
    "cargo",
    re.compile(
        r"error\[E\d+\]: |error: could not compile|error: no matching package"
        r"|error: failed to .*(?:manifest|`|lock|edition|custom build)"
        r"|thread '.*'.* panicked at |test result: FAILED|error: .*(?:Cargo\.|--locked|rustc |cargo)"
        r"|\s*--> \S+\.(?:rs|toml):\d+|Usage: cargo"
    ),
    _read_cargo,
)
