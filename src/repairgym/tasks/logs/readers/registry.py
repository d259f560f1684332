"""All readers, the deepest causes first.

A build of several tools prints what each of them says: npm reports that a script failed, the compiler or the test
before it why. The first reader here that has something to say decides.
"""

from collections.abc import Iterator

from repairgym.records import MainError
from repairgym.tasks.logs.readers.base import Lines, Reader
from repairgym.tasks.logs.readers.java import COMPILER, GRADLE, MAVEN, TESTS
from repairgym.tasks.logs.readers.javascript_tests import JEST, MOCHA, VITEST
from repairgym.tasks.logs.readers.native import CARGO, GO
from repairgym.tasks.logs.readers.node import NODE, NODE_TEST
from repairgym.tasks.logs.readers.packages import NPM, PNPM, YARN
from repairgym.tasks.logs.readers.typescript import ESLINT, TSC

READERS: tuple[Reader, ...] = (
    *(TSC, COMPILER, GO, CARGO, ESLINT),
    *(JEST, VITEST, NODE_TEST, MOCHA, TESTS),
    *(NODE, GRADLE, MAVEN, NPM, PNPM, YARN),
)


def read_errors(lines: Lines) -> Iterator[MainError]:
    """Yield the errors that the first reader finds; nothing where no tool of theirs wrote the log."""
    for reader in READERS:
        if any(map(reader.mark.match, lines)):
            errors = reader.read(lines)
            first = next(errors, None)
            if first is not None:
                yield first
                yield from errors
                return
