"""Patches applied to texts, and reversed.

Reads patch text and the files it changes; makes the changed files, or the reverse patch. Guarantees: a patch applies
as ``git apply`` applies it, as a whole or not at all: context and deleted lines match exactly, at the hunk's line or
the nearest line where they match (no fuzz), hunks in any order; copies and renames are of the files as they were before
the patch. Nothing is read or written on disk and no program runs; binary files, links and submodules do not apply; file
modes are ignored, and kept in a reverse patch. A patch reversed twice makes its first changes again.
"""

from collections.abc import Callable, Iterator

from repairgym.diffs.lines import split_lines
from repairgym.diffs.parse import FilePatch, PatchError, PatchHunk, parse_patch

ReadFile = Callable[[str], str | None]
"""Path -> text before the patch; None when there is no such text file."""


def apply_patch(patch: str, read: ReadFile) -> dict[str, str | None]:
    """Return the files that ``patch`` changes, as they are after it (None: deleted); empty for a text without a diff.

    Raises:
        PatchError: the patch is broken, changes a file that is not text, or does not fit the files.
    """
    parts = parse_patch(patch)
    leaving = {file.old_path for file in parts if file.new_path is None or file.is_rename}
    files: dict[str, str | None] = {}
    for file in parts:
        _apply_file(file, files, read, leaving)
    return files


def _apply_file(file: FilePatch, files: dict[str, str | None], read: ReadFile, leaving: set[str | None]) -> None:
    """Change ``files``; ``leaving`` are the paths that some part of the patch removes or renames."""

    def current(path: str) -> str | None:
        return files[path] if path in files else read(path)

    if file.special:
        raise PatchError(f"{file.path} is {file.special}; only text files can be patched")
    # Copies and renames are of the file before the patch, whatever the order of its parts.
    source = read if file.is_copy or file.is_rename else current
    text = source(file.old_path) if file.old_path is not None else ""
    if text is None and file.can_be_new and file.old_path not in files:
        text = ""
    if text is None:
        raise PatchError(f"{file.old_path}: no such text file, but the patch changes it")
    is_kept = file.new_path in files or file.new_path not in leaving
    if file.new_path is not None and file.new_path != file.old_path and is_kept and current(file.new_path) is not None:
        raise PatchError(f"{file.new_path}: is already there, but the patch adds it")
    changed = _apply_hunks(file, text)
    is_replaced = file.is_rename and files.get(file.old_path or "") is not None  # two files that change places
    if file.old_path is not None and not file.is_copy and not is_replaced:
        files[file.old_path] = None
    if file.new_path is not None:
        files[file.new_path] = changed
    elif changed:
        raise PatchError(f"{file.old_path}: the patch deletes it, but its content differs from the patch")


def _apply_hunks(file: FilePatch, text: str) -> str:
    lines = split_lines(text)
    is_free = [True] * len(lines)
    for number, hunk in enumerate(file.hunks, 1):
        before, after = hunk.side("-"), hunk.side("+")
        at = _find(hunk, before, lines, is_free)
        if at is None:
            place = f"hunk {number} of {len(file.hunks)} does not apply near line {hunk.old_start}"
            raise PatchError(f"{file.path}: {place}")
        lines[at : at + len(before)] = after
        is_free[at : at + len(before)] = [False] * len(after)
    return "".join(lines)


def _find(hunk: PatchHunk, before: list[str], lines: list[str], is_free: list[bool]) -> int | None:
    """Find the place of ``hunk`` nearest to its header's; like git, a hunk of the first or last lines fits only there.

    Lines that are not ``is_free`` are of another hunk, which can stand before or behind this one in the patch.
    """
    last = len(lines) - len(before)
    is_first, is_last = hunk.old_start <= 1, not hunk.lines[-1].startswith(" ")

    def fits(at: int) -> bool:
        is_allowed = 0 <= at <= last and (at == 0 or not is_first) and (at == last or not is_last)
        return is_allowed and lines[at : at + len(before)] == before and all(is_free[at : at + len(before)])

    wanted = min(max(hunk.new_start - 1, 0), max(last, 0))
    nearest = (wanted + sign * distance for distance in range(len(lines) + 1) for sign in (1, -1))
    return next((at for at in nearest if fits(at)), None)


# --- reversal ------------------------------------------------------------------------------------------------------


def reverse_patch(patch: str) -> str:
    """Return the patch that undoes ``patch``.

    Raises:
        PatchError: it has a binary file or a copy, whose other side is unknown.
    """
    return "".join(_reversed_file(file) for file in parse_patch(patch))


def _reversed_file(file: FilePatch) -> str:
    if file.special or file.is_copy:
        kind = file.special or "a copy"
        raise PatchError(f"{file.path} is {kind}: its patch cannot be reversed without the file")
    old, new = file.new_path, file.old_path
    old_mode, new_mode = file.new_mode, file.old_mode
    lines = [f"diff --git a/{old or new} b/{new or old}\n"]
    if old is None:
        lines.append(f"new file mode {new_mode or '100644'}\n")
    elif new is None:
        lines.append(f"deleted file mode {old_mode or '100644'}\n")
    elif old_mode and new_mode:
        lines.append(f"old mode {old_mode}\nnew mode {new_mode}\n")
    if file.is_rename:
        lines.append(f"rename from {old}\nrename to {new}\n")
    if file.hunks:
        lines.append(f"--- {f'a/{old}' if old else '/dev/null'}\n+++ {f'b/{new}' if new else '/dev/null'}\n")
    if len(lines) == 1:
        return ""  # it changes nothing, and git rejects a lone first line
    return "".join(lines) + "".join(_reversed_hunk(hunk) for hunk in file.hunks)


def _reversed_hunk(hunk: PatchHunk) -> str:
    num_old, num_new = len(hunk.side("+")), len(hunk.side("-"))
    header = f"@@ -{hunk.new_start},{num_old} +{hunk.old_start},{num_new} @@{hunk.section}\n"
    return header + "".join(_with_marker(line) for line in _reversed_lines(hunk.lines))


def _reversed_lines(lines: tuple[str, ...]) -> Iterator[str]:
    """Yield the lines with the other sign; within a run of changes the removed lines come first."""
    added: list[str] = []
    for line in lines:
        if line[0] == "-":
            added.append("+" + line[1:])
        elif line[0] == "+":
            yield "-" + line[1:]
        else:
            yield from added
            added.clear()
            yield line
    yield from added


def _with_marker(line: str) -> str:
    return line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
