import pytest
from hypothesis import given
from hypothesis import strategies as st

from repairgym.sandbox.guest import sessions


@given(
    st.binary(max_size=60).filter(lambda text: b"\0" not in text),
    st.binary(max_size=40).filter(lambda noise: b"repairgym" not in noise),
)
def test_the_last_whole_state_counts(text, noise):
    whole = b"\0repairgym-state\0/cwd\0" + text + b"\0repairgym-end\0"
    cut = b"\0repairgym-state\0/cut\0" + text
    assert sessions.parse_state(noise + whole + noise, False) == ("/cwd", text)
    assert sessions.parse_state(whole + cut, False) == ("/cwd", text)
    assert sessions.parse_state(cut, False) is None
    assert sessions.parse_state(whole, True) is None


def test_commands_are_quoted_for_the_new_bash():
    text = sessions.restoring_text(b"state\n", b"echo 'it'", 7)
    assert text.index(rb"REPAIRGYM_COMMAND='echo '\''it'\'''") < text.index(b"state") < text.index(b"return 7")
    with pytest.raises(ValueError, match="NUL"):
        sessions.split_request([b"", b"a\0b", b""])
