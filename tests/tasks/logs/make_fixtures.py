"""Run the broken projects with the real tools; write their logs to fixtures/, one file of JSON lines per tool.

Usage: python tests/tasks/logs/make_fixtures.py [TOOL ...] [--tools FOLDER]

``FOLDER/node_modules`` holds pnpm, yarn (berry as @yarnpkg/cli-dist), typescript, eslint, jest, vitest and mocha; JDK,
Maven, Gradle, Kotlin, Go and Rust are on the PATH, Debian's offline Maven repository below /usr/share/maven-repo. A
tool that is not there keeps its file. Each line has the log, the answer that broken_projects/ expects, and for one
project in three the log of the same project elsewhere, moved down by a line. Folders of this machine and hosts of
registries are replaced.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from broken_projects import Project, javascript, jvm, native, packages

HERE = Path(__file__).parent
PROJECTS = packages.PROJECTS + javascript.PROJECTS + jvm.PROJECTS + native.PROJECTS
MAX_LOG_CHARS = 6000
CODE = (".js", ".mjs", ".ts", ".java", ".kt", ".go", ".rs")
NEEDS = {"gradle": "gradle", "kotlinc": "kotlinc", "go": "go", "surefire": "mvn", "maven": "mvn", "node_test": "node"}


def third(project: Project) -> int:
    """Return 0 for the holdout set, 1 for projects with a second log, 2 for the others."""
    return hashlib.sha256(project.id.encode()).digest()[0] % 3


def main() -> None:
    """Make the fixtures of the chosen tools."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--tools", type=Path, default=Path("tools"))
    arguments = parser.parse_args()
    tools = arguments.tools.resolve()
    os.environ["PATH"] = f"{tools / 'node_modules/.bin'}:{tools / 'bin'}:{os.environ['PATH']}"
    os.environ |= {"NO_UPDATE_NOTIFIER": "1", "NO_COLOR": "1", "LC_ALL": "C.UTF-8", "CI": "1"}
    for tool in dict.fromkeys(project.tool for project in PROJECTS):
        if arguments.names and tool not in arguments.names:
            continue
        if shutil.which(NEEDS.get(tool, tool)) is None:
            print(f"{tool}: not on this machine")
            continue
        rows = [row_of(project, tools) for project in PROJECTS if project.tool == tool]
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (HERE / "fixtures" / f"{tool}.jsonl").write_text(text, encoding="utf-8")
        print(f"{tool}: {len(rows)} logs; expected words not in the log: {unconfirmed(rows)}")


def row_of(project: Project, tools: Path) -> dict[str, object]:
    """Return the fixture of ``project``."""
    row: dict[str, object] = {
        "id": project.id,
        "error_class": project.error_class,
        "message": project.message,
        "place": project.place,
        "is_holdout": third(project) == 0,
        "log": log_of(project, tools, "shop", ""),
    }
    if third(project) == 1:
        row["moved_log"] = log_of(project, tools, "moved/shop", "\n")
    return row


def log_of(project: Project, tools: Path, folder: str, before_code: str) -> str:
    """Return the log of ``project`` in a fresh folder."""
    with tempfile.TemporaryDirectory() as root:
        place = Path(root) / folder
        for name, text in project.files.items():
            path = place / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(before_code + text if name.endswith(CODE) and text else text, encoding="utf-8")
        if project.tool == "vitest":
            (place / "node_modules").symlink_to(tools / "node_modules")
        if project.before:
            run(project.before, place)
        log = run(project.command, place)
        return neutral(log, {str(place): f"/home/dev/{folder}", root: "/home/dev", str(tools): "/opt/tools"})


def run(command: str, place: Path) -> str:
    """Return what ``command`` prints."""
    shell = ["sh", "-c", f"exec 2>&1; {command}"]
    done = subprocess.run(shell, cwd=place, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=300, check=False)
    return done.stdout.decode(errors="replace")


def neutral(log: str, folders: dict[str, str]) -> str:
    """Return ``log`` with neutral folders and hosts, cut in the middle."""
    for old, new in folders.items():
        log = log.replace(old, new)
    log = log.replace(str(Path.home()), "/home/dev")
    log = re.sub(r"(?m)^npm warn Unknown .* config .*\n", "", log)  # of this machine's own settings
    log = re.sub(r"(https?://)[^/\s\"')]+", r"\1registry.example", log)
    if len(log) <= MAX_LOG_CHARS:
        return log
    return f"{log[: MAX_LOG_CHARS // 2]}\n[...]\n{log[-MAX_LOG_CHARS // 2 :]}"


def unconfirmed(rows: list[dict[str, object]]) -> list[str]:
    """Return the fixtures whose log has not the words of the expected message, or not the file of its place."""
    names = []
    for row in rows:
        log = " ".join(str(row["log"]).split())
        message, file = " ".join(str(row["message"]).split()), str(row["place"]).split(":")[0].rpartition("/")[2]
        if message not in log or file not in log:
            names.append(str(row["id"]).partition("/")[2])
    return names


if __name__ == "__main__":
    sys.exit(main())
