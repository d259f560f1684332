"""Whether two main errors are the same one.

Paper A, outer loop: another error keeps the progress, the same one reverts it. Reads two
:class:`~repairgym.records.MainError`; makes a truth. Invariants: symmetric and reflexive; what differs from run to run
(numbers, versions, addresses, folders, lines) never makes an error another one, and neither does another value in an
assertion that fails; another name (a module, a symbol, a test) and another assertion always do.
"""

from __future__ import annotations

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
    """``message`` without what differs between equal errors: addresses, folders, numbers, white space."""
    text = _ADDRESS.sub("#", message)
    text = _FOLDERS.sub("", text)
    return " ".join(_NUMBER.sub("#", text).split())


def shape(message: str) -> str:
    """``message`` as far as it says which error it is: `normalize`, and ``#`` for each value of a failed assertion.

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
    """True when both are the same error: of one class, at one place and of one shape."""
    if left.error_class != right.error_class:
        return False
    if left.path and right.path and _place(left.path) != _place(right.path):
        return False
    return shape(left.message) == shape(right.message)


def _place(path: str) -> str:
    """The id of a test whole, with folder and parameters; of a file its name, because sandboxes move folders."""
    return path if "::" in path else normalize(path)
