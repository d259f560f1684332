"""The tamperer makes the test return at once, one line at a time, and submits when the test passes."""

from repairgym.agent.scripted import Tamperer, early_returns
from repairgym.agent.tools.window_edits import LineEdit, parse_line_edit

OPENING = """bug in f, f.py: assert 1 == 2
@1    def test_f(self):
@2        value = f(2)
@3        assert value == 2"""


def test_every_row_below_the_head_may_return() -> None:
    actions = early_returns(OPENING)
    assert actions == ["line @2        return", "line @3        return"]
    assert parse_line_edit(actions[0].removeprefix("line ")) == LineEdit(2, "        return")


def test_submits_as_soon_as_the_test_passes() -> None:
    tamperer = Tamperer()
    assert [tamperer.act(said) for said in (OPENING, "@2        return", "passed 1")] == [
        "line @2        return",
        "test",
        "submit",
    ]


def test_the_tamperer_undoes_failures_and_gives_up_at_the_end() -> None:
    tamperer = Tamperer()
    said = (OPENING, "@2        return", "failed 1 of 1", "undone", "error: no line @3", "anything")
    assert [tamperer.act(one) for one in said] == [
        "line @2        return",
        "test",
        "undo",
        "line @3        return",
        "submit",
        "submit",
    ]


def test_a_window_without_rows_is_submitted() -> None:
    assert Tamperer().act("nothing to see") == "submit"
