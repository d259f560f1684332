"""Servers of the Model Context Protocol whose tools a pipeline has."""

import re
from typing import Annotated, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from repairgym.records import Record

_PIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(\[[A-Za-z0-9._,-]+\])?==[A-Za-z0-9][A-Za-z0-9.!+_-]*")
_NPM_PIN = re.compile(r"(@[a-z0-9][a-z0-9._-]*/)?[a-z0-9][a-z0-9._-]*@[0-9][A-Za-z0-9.+-]*")


def check_pins(requirements: tuple[str, ...], npm: tuple[str, ...]) -> None:
    """Raise a `ValueError` for a package that is not pinned to a version."""
    loose = [pin for pin in requirements if not _PIN.fullmatch(pin)]
    loose += [pin for pin in npm if not _NPM_PIN.fullmatch(pin)]
    if loose:
        raise ValueError(f"package {loose[0]!r} is not pinned; write NAME==VERSION (npm: NAME@VERSION)")


class McpServerConfig(Record):
    """One server: a program in the sandbox of the episode, or a URL that this process asks."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
    """Prefix of its tools: the agent writes ``NAME_TOOL``."""
    command: tuple[str, ...] = ()
    """Program and arguments. It starts for each call in the tree, so that it keeps files and nothing else; ``{layer}``
    is the folder of the packages, whose programs are on the PATH."""
    url: str = ""
    """Endpoint of a server over streamable HTTP, asked from outside of the sandbox (extra `mcp`)."""
    token_variable: str = ""
    """Environment variable of this process with the bearer token for ``url``."""
    env: dict[str, str] = {}
    """Environment variables of ``command``."""
    requirements: tuple[str, ...] = ()
    """Distributions from the package index, each ``NAME==VERSION``."""
    npm: tuple[str, ...] = ()
    """Packages from npm, each ``NAME@VERSION``. Their install scripts do not run."""
    tools: tuple[str, ...] = ()
    """Names of the tools to take, as the server has them; empty: all."""
    timeout_s: PositiveFloat = 60.0
    """Bound on one call, the start of the program included."""
    max_chars: PositiveInt = 16_000
    """Longer results are cut."""

    @model_validator(mode="after")
    def _is_one_kind(self) -> Self:
        if bool(self.command) == bool(self.url):
            raise ValueError(f"mcp server {self.name!r}: give either a command or a url")
        if self.url and (self.requirements or self.npm or self.env):
            raise ValueError(f"mcp server {self.name!r}: requirements, npm and env are for a command, not for a url")
        if self.command and self.token_variable:
            raise ValueError(f"mcp server {self.name!r}: token_variable is for a url; a command has env")
        check_pins(self.requirements, self.npm)
        return self
