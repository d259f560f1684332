"""What a unified diff does: files after it, and the diff that takes it back.

Reads patch text and the files it changes; makes the changed files, or another patch. Invariants: a patch applies as
``git apply`` applies it, as a whole or not at all: context and deleted lines match exactly, at the line that the hunk
names or as near to it as they are found (no fuzz); nothing is read or written on disk and no program runs, whatever
the patch says. What a text cannot hold (binary files, links, submodules) does not apply; file modes are ignored. A
patch reversed twice changes what it changed before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from repairgym.diffs.make import split_lines
from repairgym.diffs.parse import FilePatch, PatchError, PatchHunk, parse_patch

ReadFile = Callable[[str], str | None]
"""Path -> text before the patch; None when there is no such text file."""


def apply_patch(patch: str, read: ReadFile) -> dict[str, str | None]:
    """The files that ``patch`` changes, as they are after it (None: deleted); empty for a text without a diff.

    Raises:
        PatchError: it is broken, is about a file that is no text, or does not fit the files.
    """
    files: dict[str, str | None] = {}
    for one in parse_patch(patch):
        _apply_file(one, files, read)
    return files


def reverse_patch(patch: str) -> str:
    """The patch that takes ``patch`` back.

    Raises:
        PatchError: it has a binary file or a copy, of which the other side is not known.
    """
    return "".join(_reversed_file(one) for one in parse_patch(patch))


def _apply_file(one: FilePatch, files: dict[str, str | None], read: ReadFile) -> None:
    def current(path: str) -> str | None:
        return files[path] if path in files else read(path)

    if one.special:
        raise PatchError(f"{one.path} is {one.special}; only text files can be patched")
    text = current(one.old_path) if one.old_path is not None else ""
    if text is None:
        raise PatchError(f"{one.old_path}: no such text file, but the patch changes it")
    if one.new_path is not None and one.new_path != one.old_path and current(one.new_path) is not None:
        raise PatchError(f"{one.new_path}: is already there, but the patch adds it")
    changed = _apply_hunks(one, text)
    if one.old_path is not None and not one.is_copy:
        files[one.old_path] = None
    if one.new_path is not None:
        files[one.new_path] = changed
    elif changed:
        raise PatchError(f"{one.old_path}: is to be deleted, but has other content than the patch says")


def _apply_hunks(one: FilePatch, text: str) -> str:
    lines = split_lines(text)
    first_free = 0
    for number, hunk in enumerate(one.hunks, 1):
        before, after = hunk.side("-"), hunk.side("+")
        at = _find(hunk, before, lines, first_free)
        if at is None:
            place = f"hunk {number} of {len(one.hunks)} does not apply near line {hunk.old_start}"
            raise PatchError(f"{one.path}: {place}")
        lines[at : at + len(before)] = after
        first_free = at + len(after)
    return "".join(lines)


def _find(hunk: PatchHunk, before: list[str], lines: list[str], first_free: int) -> int | None:
    """Where ``hunk`` fits, nearest to where it says; like git, a hunk of the first or last lines fits only there."""
    last = len(lines) - len(before)
    is_first, is_last = hunk.old_start <= 1, not hunk.lines[-1].startswith(" ")

    def fits(at: int) -> bool:
        is_allowed = first_free <= at <= last and (at == 0 or not is_first) and (at == last or not is_last)
        return is_allowed and lines[at : at + len(before)] == before

    wanted = min(max(hunk.new_start - 1, 0), max(last, 0))
    nearest = (wanted + sign * distance for distance in range(len(lines) + 1) for sign in (1, -1))
    return next((at for at in nearest if fits(at)), None)


# --- reversal ------------------------------------------------------------------------------------------------------


def _reversed_file(one: FilePatch) -> str:
    if one.special or one.is_copy:
        kind = one.special or "a copy"
        raise PatchError(f"{one.path} is {kind}: its patch cannot be reversed without the file")
    old, new = one.new_path, one.old_path
    lines = [f"diff --git a/{old or new} b/{new or old}\n"]
    if old is None:
        lines.append("new file mode 100644\n")
    elif new is None:
        lines.append("deleted file mode 100644\n")
    elif old != new:
        lines.append(f"rename from {old}\nrename to {new}\n")
    if one.hunks:
        lines.append(f"--- {f'a/{old}' if old else '/dev/null'}\n+++ {f'b/{new}' if new else '/dev/null'}\n")
    return "".join(lines) + "".join(_reversed_hunk(hunk) for hunk in one.hunks)


def _reversed_hunk(hunk: PatchHunk) -> str:
    num_old, num_new = len(hunk.side("+")), len(hunk.side("-"))
    head = f"@@ -{hunk.new_start},{num_old} +{hunk.old_start},{num_new} @@{hunk.section}\n"
    return head + "".join(_with_note(line) for line in _in_order(hunk.lines))


def _in_order(lines: tuple[str, ...]) -> Iterator[str]:
    """Lines with the other sign; within a run of changes the removed ones first."""
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


def _with_note(line: str) -> str:
    return line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
