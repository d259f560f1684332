"""Equality of main errors (paper A, outer loop: another error keeps the progress, the same one reverts it).

Reads two :class:`~repairgym.records.MainError`. Guarantees: symmetric and reflexive; differences between equal runs
(numbers, versions, addresses, folders, lines) and other values in a failed assertion never make errors different;
another name (a module, a symbol, a test) or another assertion always does.
"""

import re

from repairgym.records import MainError

_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")
_FOLDERS = re.compile(r"(?:(?<=[\s'\"(=])|^)(?:[\w.@+~-]*/)+(?=[\w.@+-])")
_NUMBER = re.compile(r"(?<![\w])\d+(?:\.\d+)*(?![\w])")
_ASSERTION = re.compile(r"^(?:AssertionError\b(?:: )?|(?=assert\b))")
_VALUE = re.compile(
    r"[bru]{0,2}(?:'(?:[^'\\]|\\.)*(?:'|$)|\"(?:[^\"\\]|\\.)*(?:\"|$))"  # texts; the last one may be cut off
    r"|(?<![\w#])[-+]?\d[\d_]*(?:\.\d*)?(?:e[-+]?\d+)?j?(?!\w)|\b(?:True|False|None|nan|inf)\b"
)
_DISPLAY = re.compile(r"[\[({][#\s,:.]*[\])}]")
"""A list, tuple, dictionary or set of values alone."""


def normalize(message: str) -> str:
    """Return ``message`` without addresses, folders, numbers and white space, which differ between equal errors."""
    text = _ADDRESS.sub("#", message)
    text = _FOLDERS.sub("", text)
    return " ".join(_NUMBER.sub("#", text).split())


def shape(message: str) -> str:
    """Return the identity of ``message``: `normalize`, and ``#`` for each value of a failed assertion.

    ``assert 3 == 4`` and ``assert [1, 'a'] == []`` are both ``assert # == #``, ``assert 3 in [4]`` is not.
    """
    match = _ASSERTION.match(message)
    if match is None:
        return normalize(message)
    text = _VALUE.sub("#", _ADDRESS.sub("#", message[match.end() :]))
    while (shorter := _DISPLAY.sub("#", text)) != text:
        text = shorter
    return " ".join(text.split())


def is_same_error(left: MainError, right: MainError) -> bool:
    """Return True for errors of one class, place and shape."""
    if left.error_class != right.error_class:
        return False
    if left.path and right.path and _place(left.path) != _place(right.path):
        return False
    return shape(left.message) == shape(right.message)


def _place(path: str) -> str:
    """Return a test id unchanged, or the name of a file, because sandboxes move folders."""
    return path if "::" in path else normalize(path)
