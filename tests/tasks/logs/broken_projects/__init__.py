"""Small broken projects of our own, one per error, with the main error that their tool's log has."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Project:
    """A project that fails in one known way."""

    tool: str
    name: str
    command: str
    """Shell line, run in the project's folder."""
    files: dict[str, str]
    error_class: str
    message: str
    """Part of the right line of the log; white space does not count."""
    place: str = ""
    """``file:line``, ``file``, or nothing where the log names no place."""
    before: str = field(default="", compare=False)
    """Shell line that prepares the folder; its output is no part of the log."""

    @property
    def id(self) -> str:
        """Tool and name."""
        return f"{self.tool}/{self.name}"
