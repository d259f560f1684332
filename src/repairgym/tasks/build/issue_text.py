"""Issue texts: a user's report, made from names and one failure message.

Reads the function's name and its file, or the failing tests' names, and the message. Makes one or two lines.
Guarantees: neither test source nor the fix is in it, because neither is read.
"""

from __future__ import annotations

import random

MAX_MESSAGE_CHARS = 120
_WORDINGS = (
    "{name} in {path} is wrong: {message}",
    "{name} ({path}) gives a wrong result: {message}",
    "bug in {name}, {path}: {message}",
    "{path}: {name} misbehaves: {message}",
)
_BUILD_WORDINGS = (
    "building {name} does not work any more: {message}",
    "the wheel of {name} cannot be used, {message}",
    "pip wheel . in {name}: {message}",
)
MAX_NAMES = 3
_TEST_WORDINGS = (
    "after the last change {tests}: {message}",
    "regression, {tests} with: {message}",
    "{tests}: {message}",
)


def mutation_issue(qualified_name: str, path: str, message: str, generator: random.Random) -> str:
    """Report a bug in ``qualified_name`` with the first line of the failure, in one of a few wordings."""
    wording = generator.choice(_WORDINGS)
    return wording.format(name=qualified_name, path=path, message=_first_line(message))


def failing_tests_issue(test_names: tuple[str, ...], message: str, generator: random.Random) -> str:
    """Report failing tests by name, for a bug without a changelog entry."""
    wording = generator.choice(_TEST_WORDINGS)
    more = f" and {len(test_names) - MAX_NAMES} more" if len(test_names) > MAX_NAMES else ""
    verb = "fails" if len(test_names) == 1 else "fail"
    return wording.format(tests=f"{', '.join(test_names[:MAX_NAMES])}{more} {verb}", message=_first_line(message))


def build_issue(name: str, message: str, generator: random.Random) -> str:
    """Report a failing build or a wrong wheel of ``name``."""
    return generator.choice(_BUILD_WORDINGS).format(
        name=name, message=_first_line(message).removeprefix("AssertionError: ")
    )


def _first_line(message: str) -> str:
    return message.strip().splitlines()[0][:MAX_MESSAGE_CHARS] if message.strip() else "see the failing test"
