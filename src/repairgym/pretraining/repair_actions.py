"""The actions that turn one text of a function into another, in the language of the window's tools.

Reads two lists of lines; makes ``edit``, ``line``, ``insert`` and ``delete`` actions for a window over all lines of the
first. Guarantee: actions that are returned lead from the first text to the second, through the tools' own code.
"""

from collections.abc import Sequence
from difflib import SequenceMatcher

from repairgym.agent.tools.window import Window, render_line
from repairgym.agent.tools.window_edits import (
    CompactEdit,
    change_of,
    edit_at,
    parse_compact_edit,
    replace_on_line,
    token_spans,
)

MAX_COMPACT_SHARE = 0.7
"""A compact edit that is longer than this share of the new line is written as a whole line. Our choice."""


def text_of(lines: Sequence[str]) -> str:
    """Return the text of ``lines``."""
    return "".join(f"{line}\n" for line in lines)


def whole_window(path: str, lines: Sequence[str]) -> Window:
    """Return the window over all of ``lines``."""
    return Window(path, tuple(range(1, len(lines) + 1)))


def repair_actions(before: Sequence[str], after: Sequence[str]) -> list[str] | None:
    """Return the actions from ``before`` to ``after``, from top to bottom; None if they cannot be written."""
    actions: list[str] = []
    next_label = len(before) + 1
    for tag, first, end, new_first, new_end in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if tag == "equal":
            continue
        olds, news = before[first:end], after[new_first:new_end]
        num_pairs = min(len(olds), len(news))
        actions += [_line_action(first + k + 1, olds[k], news[k]) for k in range(num_pairs)]
        actions += [f"delete @{first + k + 1}" for k in range(num_pairs, len(olds))]
        above = first + num_pairs
        for line in news[num_pairs:]:
            actions.append(f"insert {render_line(above, line)}")
            above, next_label = next_label, next_label + 1
    return actions if actions and play(before, actions) == text_of(after) else None


def play(before: Sequence[str], actions: Sequence[str]) -> str | None:
    """Return the text behind ``actions``; None where a tool rejects one."""
    text, window = text_of(before), whole_window("", before)
    for action in actions:
        tool, _, argument = action.partition(" ")
        change = change_of(tool, text, window, argument)
        if isinstance(change, str):
            return None
        text, window = change.text, change.window
    return text


def _line_action(label: int, old: str, new: str) -> str:
    edit = shortest_edit(label, old, new)
    if edit is not None and len(edit.old) + len(edit.new) <= MAX_COMPACT_SHARE * len(new.strip()):
        return f"edit {edit}"
    return f"line {render_line(label, new)}"


def shortest_edit(label: int, old: str, new: str) -> CompactEdit | None:
    """Return the compact edit of the fewest tokens from line ``old`` to ``new``; None if there is none."""
    olds, news = token_spans(old), token_spans(new)
    old_tokens, new_tokens = ([line[start:end] for start, end in spans] for line, spans in ((old, olds), (new, news)))
    shorter = min(len(olds), len(news))
    head = next((k for k in range(shorter) if old_tokens[k] != new_tokens[k]), shorter)
    tail = next((k for k in range(shorter - head) if old_tokens[-1 - k] != new_tokens[-1 - k]), shorter - head)
    if head + tail == shorter:  # nothing is left of one side: a neighbor says where
        head, tail = (head - 1, tail) if head else (head, tail - 1)
    if head < 0 or tail < 0:
        return None
    first, last = olds[head], olds[len(olds) - tail - 1]
    new_text = new[news[head][0] : news[len(news) - tail - 1][1]]
    edit = edit_at(old, label, first[0], old[first[0] : last[1]], new_text)
    is_right = edit is not None and replace_on_line(old, edit) == new and parse_compact_edit(str(edit)) == edit
    return edit if is_right else None
