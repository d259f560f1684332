from __future__ import annotations

from repairgym.report.reading import split_thought


def test_thoughts_are_separated_from_actions():
    assert split_thought("<think>hm\nso</think>\nedit x") == ("hm\nso", "edit x")
    assert split_thought("I look.\n```bash\nls\n```") == ("I look.", "```bash\nls\n```")
    assert split_thought("edit < => <= @2") == ("", "edit < => <= @2")
    assert split_thought("<tool_call>{}") == ("", "<tool_call>{}")
