"""Patches applied to texts, and reversed.

Reads patch text and the files it changes; makes the changed files, or the reverse patch. Guarantees: a patch applies
as ``git apply`` applies it, as a whole or not at all: context and deleted lines match exactly, at the hunk's line or
the nearest line where they match (no fuzz); nothing is read or written on disk and no program runs; binary files,
links and submodules do not apply; file modes are ignored. A patch reversed twice makes its first changes again.
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
    files: dict[str, str | None] = {}
    for file in parse_patch(patch):
        _apply_file(file, files, read)
    return files


def _apply_file(file: FilePatch, files: dict[str, str | None], read: ReadFile) -> None:
    def current(path: str) -> str | None:
        return files[path] if path in files else read(path)

    if file.special:
        raise PatchError(f"{file.path} is {file.special}; only text files can be patched")
    text = current(file.old_path) if file.old_path is not None else ""
    if text is None:
        raise PatchError(f"{file.old_path}: no such text file, but the patch changes it")
    if file.new_path is not None and file.new_path != file.old_path and current(file.new_path) is not None:
        raise PatchError(f"{file.new_path}: is already there, but the patch adds it")
    changed = _apply_hunks(file, text)
    if file.old_path is not None and not file.is_copy:
        files[file.old_path] = None
    if file.new_path is not None:
        files[file.new_path] = changed
    elif changed:
        raise PatchError(f"{file.old_path}: the patch deletes it, but its content differs from the patch")


def _apply_hunks(file: FilePatch, text: str) -> str:
    lines = split_lines(text)
    first_free = 0
    for number, hunk in enumerate(file.hunks, 1):
        before, after = hunk.side("-"), hunk.side("+")
        at = _find(hunk, before, lines, first_free)
        if at is None:
            place = f"hunk {number} of {len(file.hunks)} does not apply near line {hunk.old_start}"
            raise PatchError(f"{file.path}: {place}")
        lines[at : at + len(before)] = after
        first_free = at + len(after)
    return "".join(lines)


def _find(hunk: PatchHunk, before: list[str], lines: list[str], first_free: int) -> int | None:
    """Find the place of ``hunk`` nearest to its header's; like git, a hunk of the first or last lines fits only there.

    ``first_free`` is the first line after the hunk before.
    """
    last = len(lines) - len(before)
    is_first, is_last = hunk.old_start <= 1, not hunk.lines[-1].startswith(" ")

    def fits(at: int) -> bool:
        is_allowed = first_free <= at <= last and (at == 0 or not is_first) and (at == last or not is_last)
        return is_allowed and lines[at : at + len(before)] == before

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
    lines = [f"diff --git a/{old or new} b/{new or old}\n"]
    if old is None:
        lines.append("new file mode 100644\n")
    elif new is None:
        lines.append("deleted file mode 100644\n")
    elif old != new:
        lines.append(f"rename from {old}\nrename to {new}\n")
    if file.hunks:
        lines.append(f"--- {f'a/{old}' if old else '/dev/null'}\n+++ {f'b/{new}' if new else '/dev/null'}\n")
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
