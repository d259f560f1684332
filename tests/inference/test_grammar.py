"""Grammars of JSON schemas: what a schema leaves open without an end is closed, all else is as the schema says."""

from __future__ import annotations

from typing import Any

import pytest

from repairgym.inference.grammar import GrammarCompiler, call_grammar, json_grammar
from repairgym.inference.loading import load_tokenizer, shipped_base
from repairgym.inference.renderer import ChatRenderer
from repairgym.inference.tool_calls import HERMES

LISTED = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
NAMED_LIKE_KEYWORDS = {"type": "object", "properties": {"type": LISTED, "properties": {"type": "boolean"}}}
COMBINED = {"allOf": [LISTED, {"type": "object", "properties": {"b": {"type": "boolean"}}}]}


@pytest.fixture(scope="module")
def renderer() -> ChatRenderer:
    return ChatRenderer(load_tokenizer(shipped_base()))


@pytest.fixture(scope="module")
def compiler(renderer: ChatRenderer) -> GrammarCompiler:
    return GrammarCompiler(renderer)


def fits(compiler: GrammarCompiler, renderer: ChatRenderer, term: str, text: str) -> bool:
    """Whether each token of ``text`` may be sampled, and then the end of the message."""
    mask = compiler.compile(term)
    for token_id in [*renderer.prompt_ids(text), renderer.stop_token_ids[0]]:
        if not mask.allowed(renderer.vocab_size)[token_id]:
            return False
        mask.accept(token_id)
    return True


@pytest.mark.parametrize(
    ("schema", "text", "is_fitting"),
    [
        (LISTED, '{"a": 1}', True),
        (LISTED, '{"a": 1, "b": 2}', False),
        (LISTED, '{"a": 9007199254740992}', False),
        (LISTED | {"additionalProperties": True}, '{"a": 1, "b": 2}', True),
        ({"type": "array", "items": LISTED}, '[{"a": 1}, {"a": 2}]', True),
        ({"type": "array", "items": LISTED}, '[{"a": 1, "b": 2}]', False),
        (NAMED_LIKE_KEYWORDS, '{"type": {"a": 1}, "properties": true}', True),
        (NAMED_LIKE_KEYWORDS, '{"type": {"a": 1, "b": 2}}', False),
        ({"type": "object"}, '{"b": 2}', True),
        (COMBINED, '{"a": 1, "b": true}', True),
        ({"$defs": {"L": LISTED}, "$ref": "#/$defs/L"}, '{"a": 1}', True),
        ({"$defs": {"L": LISTED}, "$ref": "#/$defs/L"}, '{"a": 1, "b": 2}', False),
    ],
)
def test_objects_have_the_keys_that_they_list(
    compiler: GrammarCompiler, renderer: ChatRenderer, schema: dict[str, Any], text: str, is_fitting: bool
) -> None:
    assert fits(compiler, renderer, json_grammar(schema), text) == is_fitting


@pytest.mark.parametrize(("arguments", "is_fitting"), [("{}", True), ('{"b": 2}', False)])
def test_a_function_without_parameters_takes_none(
    compiler: GrammarCompiler, renderer: ChatRenderer, arguments: str, is_fitting: bool
) -> None:
    call = f'<tool_call>\n{{"name": "look", "arguments": {arguments}}}\n</tool_call>'
    assert fits(compiler, renderer, call_grammar(HERMES, [{"name": "look"}]), call) == is_fitting
