"""Action formats: what is written is read back, and nothing that a model writes is more than an error."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repairgym.agent.formats import FORMATS, Action, ParseError, describe_schemas, message_of_text, text_of_message
from repairgym.agent.pipelines.registry import make_pipeline
from repairgym.config.pipeline import PaperBConfig, PipelineConfig
from repairgym.errors import InputError
from repairgym.inference.tool_calls import CALL_FORMS
from repairgym.sandbox.cache import ExecutionCache

TOOLS = {
    **make_pipeline(PipelineConfig(tools=("write", "view", "test")), ExecutionCache()).tools,
    **make_pipeline(PaperBConfig(), ExecutionCache()).tools,
}
TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=80)
MARKS = (
    "```command\n",
    "```",
    "<edit>",
    "</edit>",
    "<tool_call>",
    "</tool_call>",
    '{"name": "edit"',
    "}",
    "edit",
    "\n",
)


def block(command: str) -> str:
    return f"```command\n{command}\n```"


@pytest.mark.parametrize("name", sorted(FORMATS))
@given(st.lists(st.one_of(st.sampled_from(MARKS), TEXTS), max_size=8))
def test_nothing_that_is_written_raises(name, parts):
    found = FORMATS[name]().parse("".join(parts), TOOLS)
    assert isinstance(found, ParseError) or found.tool in TOOLS


@pytest.mark.parametrize("name", ["json_xml", "native"])
@given(values=st.dictionaries(TEXTS, st.one_of(TEXTS, st.integers(), st.booleans())), reasoning=TEXTS)
def test_json_formats_read_their_own_actions(name, values, reasoning):
    action = Action("edit", values)
    assert FORMATS[name]().parse(FORMATS[name]().write(action), TOOLS) == action
    if "<" not in reasoning:
        assert FORMATS[name]().parse(FORMATS[name]().write(action, reasoning), TOOLS) == action


@given(TEXTS.filter(lambda text: "\r" not in text and "`" not in text and text.strip() and text[0].strip()))
def test_the_fenced_format_reads_its_own_actions(text):
    text = text.strip("\n")
    fenced = FORMATS["fenced"]()
    assert fenced.parse(fenced.write(Action("search_file", text)), TOOLS) == Action("search_file", text)
    assert fenced.parse(fenced.write(Action("shell", f"ls {text}"), "I look."), TOOLS) == Action("shell", f"ls {text}")


TAGS = st.sampled_from(
    ["</arg_value>", "</parameter>", "<arg_key>path</arg_key>", "</tool_call>", "</function>", "<tool_call>", "\n", "x",
     '{"name": "a", "parameters": {}}', "<|channel|>commentary to=functions.a <|message|>{}", "<arg_value>", ";"]
)  # fmt: skip


@pytest.mark.parametrize("form", CALL_FORMS, ids=lambda form: form.name)
@given(text=st.lists(st.one_of(TAGS, TEXTS), max_size=6).map("".join))
def test_every_form_writes_a_call_that_is_read_as_it_or_says_that_it_cannot(form, text):
    native, action = FORMATS["native"](form), Action("write_text", {"path": "a.py", "text": text})
    tools = {"write_text": TOOLS["replace"]}
    try:
        written = native.write(action)
    except InputError:
        assert "</" in text, "only closing tags have no place"
        assert not form.has_typed_values, "JSON holds any text"
    else:
        assert native.parse(written, tools) == action


@pytest.mark.parametrize(
    ("name", "text"),
    [("glm", "</arg_value>\n<arg_key>path</arg_key>\n<arg_value>/etc/x"), ("glm", "a</arg_value>"),
     ("coder", "a</parameter>"), ("coder", "x</parameter></function></tool_call>")],
)  # fmt: skip
def test_a_demonstration_of_another_call_is_not_written(name, text):
    form = next(form for form in CALL_FORMS if form.name == name)
    call = {"function": {"name": "write", "arguments": {"path": "a.py", "text": text}}}
    with pytest.raises(InputError, match=f"the form '{name}' cannot hold"):
        FORMATS["native"](form).write(Action("write", call["function"]["arguments"]))
    assert text in text_of_message({"tool_calls": [call]}, form), "an earlier answer stays readable"


MARKDOWN = "```python\nx = 1\n```\n```\nplain\n```"


@pytest.mark.parametrize(
    "command",
    [
        f"cat > R.md <<'E'\n{MARKDOWN}\nE",
        f"cat > R.md <<-END\n{MARKDOWN}\n\tEND\nls",
        f'cat > R.md << "END-1"\n{MARKDOWN}\nEND-1',
        f"cat <<A > a; cat <<B > b\n{MARKDOWN}\nA\n{MARKDOWN}\nB\necho $((1 << 2))",
        f"cat > R.md << \\E\n{MARKDOWN}\nE",
    ],
)
def test_fences_in_a_here_document_end_nothing(command):
    fenced = FORMATS["fenced"]()
    assert fenced.parse(fenced.write(Action("shell", command)), TOOLS) == Action("shell", command)
    assert fenced.parse(f"{block(command)}\nIt will say:\n```\nok\n```\n", TOOLS) == Action("shell", command)
    two = fenced.parse(f"{block(command)}\n{block('ls')}", TOOLS)
    assert isinstance(two, ParseError)
    assert "has 2 commands" in two.message


def test_a_fence_ends_a_here_document_that_does_not_end():
    fenced = FORMATS["fenced"]()
    assert fenced.parse(block("cat <<E\nx"), TOOLS) == Action("shell", "cat <<E\nx")
    two = fenced.parse(f"{block('cat <<E')}\n{block('cat <<E')}", TOOLS)
    assert isinstance(two, ParseError)
    assert "has 2 commands" in two.message
    assert fenced.parse(f"{block('echo $((1 << n))')}\n", TOOLS) == Action("shell", "echo $((1 << n))")
    with pytest.raises(InputError, match="would end the command"):
        fenced.write(Action("shell", "echo '\n```\n'"))


def test_the_compact_format_reads_its_own_actions():
    compact = FORMATS["compact"]()
    for action in (Action("view", "a.py:3"), Action("test", "")):
        assert compact.parse(compact.write(action), TOOLS) == action
    assert compact.write(Action("test", {})) == "test"


def test_a_tool_is_called_where_its_name_stands_first():
    fenced = FORMATS["fenced"]()
    assert fenced.parse(block("goto 3"), TOOLS) == Action("goto", "3")
    assert fenced.parse(block("cd src && open a.py"), TOOLS) == Action("shell", "cd src && open a.py")
    assert fenced.parse(block("shell ls"), TOOLS) == Action("shell", "shell ls")
    heredoc = "edit 1:2 << 'EOF'\n  x = 1\n\nEOF"
    assert fenced.parse(f"I edit.\n{block(heredoc)}\nDone.", TOOLS) == Action("edit", heredoc.removeprefix("edit "))


@pytest.mark.parametrize(
    "text",
    [
        "ls",
        "```\nls\n```",
        "```bash\nls\n```",
        "```edit 198:198\nx\n```",
        "```command\nls",
        "```command ls```",
        block(""),
        "  ```command\nls\n  ```",
    ],
)
def test_an_answer_without_a_command_is_an_error(text):
    found = FORMATS["fenced"]().parse(text, TOOLS)
    assert isinstance(found, ParseError)
    assert "no command could be read" in found.message


def test_the_error_counts_several_commands():
    found = FORMATS["fenced"]().parse(f"{block('ls')}\n{block('pwd')}\n{block('id')}", TOOLS)
    assert isinstance(found, ParseError)
    assert "has 3 commands" in found.message


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("json_xml", "<goto>{3}</goto>", "<goto>: expecting"),
        ("json_xml", '<goto>{"line_number": 3}', "no </goto>"),
        ("json_xml", "<goto>[3]</goto>", "is no object"),
        ("json_xml", "<goto>{}</goto><goto>{}</goto>", "2 tool calls"),
        ("json_xml", "go to line 3", "no tool call"),
        ("native", '<tool_call>{"name": "fly", "arguments": {}}</tool_call>', "no tool 'fly'"),
        ("native", '<tool_call>{"arguments": {}}</tool_call>', "names no function"),
        ("native", '<tool_call>{"name": "goto", "arguments": 3}</tool_call>', "are no object"),
        ("native", '<tool_call>{"name": "goto"', "expecting"),
        ("native", f'<tool_call>{{"name": "goto", "arguments": {"1" * 5000}}}</tool_call>', "number is too long"),
        ("json_xml", f'<goto>{{"line_number": {"1" * 5000}}}</goto>', "number is too long"),
    ],
)
def test_a_malformed_call_has_a_reason(name, text, reason):
    found = FORMATS[name]().parse(text, TOOLS)
    assert isinstance(found, ParseError)
    assert reason in found.message


def test_a_closing_tag_inside_of_a_value_ends_nothing():
    text = '<edit>{"line_range": "1:1", "replacement_text": "</edit> <edit>\nline"}</edit>'
    found = FORMATS["json_xml"]().parse(text, TOOLS)
    assert found == Action("edit", {"line_range": "1:1", "replacement_text": "</edit> <edit>\nline"})


def test_observations_name_their_tool():
    action = Action("goto", {"line_number": 3})
    assert FORMATS["json_xml"]().message("x", action) == "<goto_response>\nx\n</goto_response>"
    assert FORMATS["native"]().message("x", action) == "x", "the chat template writes the tags"
    for name in FORMATS:
        assert FORMATS[name]().message("error", None) == "error"


def test_chat_messages_become_text_and_back():
    call = {"id": "a", "type": "function", "function": {"name": "goto", "arguments": '{"line_number": 3}'}}
    text = text_of_message({"role": "assistant", "content": "I go.", "tool_calls": [call]})
    assert FORMATS["native"]().parse(text, TOOLS) == Action("goto", {"line_number": 3})
    assert message_of_text(text, ["a"]) == {"role": "assistant", "content": "I go.", "tool_calls": [call]}
    assert message_of_text("no call") == {"role": "assistant", "content": "no call"}


def test_schemas_are_those_of_chat_apis():
    (goto,) = [schema["function"] for schema in describe_schemas(TOOLS) if schema["function"]["name"] == "goto"]
    assert goto["description"].startswith("move the window of the open file to a line")
    assert goto["parameters"]["required"] == ["line_number"]
    assert "shell" not in FORMATS["fenced"]().describe({"shell": TOOLS["shell"], "goto": TOOLS["goto"]})


def test_values_that_came_as_text_have_the_types_of_the_tool():
    form = next(form for form in CALL_FORMS if form.name == "glm")
    native = FORMATS["native"](form)
    action = Action("goto", {"line_number": 3})
    assert native.parse(native.write(action, "I go."), TOOLS) == action
    nested = Action("goto", {"line_number": "[" * 100_000})
    assert native.parse(native.write(nested), TOOLS) == nested
    kept = Action("open", {"file": "3"})
    assert native.parse(native.write(kept), TOOLS) == kept
