"""Grammars that constrain what is sampled: JSON schemas, and calls of required tools (extra ``grammar``: llguidance).

Guarantees: a finished answer is a text of its grammar; where a grammar fails in the middle of an answer, the answer
ends there; texts that the grammar determines have the tokens that the tokenizer gives them.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from repairgym.errors import ConfigError, install_hint
from repairgym.inference.renderer import ChatRenderer
from repairgym.inference.tool_calls import HERMES, Call, CallForm, LlamaForm

_GUIDANCE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""Written as Python writes JSON: a model that may write any number of spaces does."""
_MAX_INTEGER = 2**53 - 1
_VALUES = ("const", "enum", "default", "examples")
"""Keys of a schema whose values are no schemas."""
_OPEN = {"additionalProperties", "unevaluatedProperties", "patternProperties", "anyOf", "oneOf", "$ref", "if"}
"""Keys of an object's schema that say more of its properties than ``properties`` does."""
_NO_PARAMETERS = {"type": "object", "properties": {}}


def json_grammar(schema: Mapping[str, Any]) -> str:
    """Return the Lark term of the values of ``schema``, with the bounds of `bound_schema`."""
    return f"%json {json.dumps({**bound_schema(schema), 'x-guidance': _GUIDANCE})}"


def bound_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``schema`` with bounds where it names none: integers of I-JSON (RFC 7493), objects without unlisted keys.

    A model that may write any number of digits or of keys may never end. Objects stay open where schemas are combined
    by ``allOf``, whose parts list a part of the keys each.
    """
    bounded: dict[str, Any] = _bound(schema, is_closing='"allOf"' not in json.dumps(schema))
    return bounded


def _bound(schema: Any, *, is_closing: bool) -> Any:
    if isinstance(schema, list):
        return [_bound(each, is_closing=is_closing) for each in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {name: value if name in _VALUES else _bound(value, is_closing=is_closing) for name, value in schema.items()}
    kinds = schema.get("type")
    if kinds == "integer" or (isinstance(kinds, list) and "integer" in kinds and "number" not in kinds):
        if not {"minimum", "exclusiveMinimum", "enum", "const"} & set(schema):
            inner["minimum"] = -_MAX_INTEGER
        if not {"maximum", "exclusiveMaximum", "enum", "const"} & set(schema):
            inner["maximum"] = _MAX_INTEGER
    if is_closing and kinds == "object" and "properties" in schema and not _OPEN & set(schema):
        inner["additionalProperties"] = False
    return inner


def call_grammar(form: CallForm | None, functions: Sequence[Mapping[str, Any]]) -> str:
    """Return the Lark term of one call of one of ``functions``; `ConfigError` for a form without JSON arguments."""
    if form is not HERMES and not isinstance(form, LlamaForm):
        raise ConfigError("calls can be required of models that write them as JSON objects (Hermes, Llama 3) only")
    calls = []
    for function in functions:
        before, _, behind = form.write(Call(str(function["name"]), {})).rpartition("{}")
        arguments = json_grammar(function.get("parameters") or _NO_PARAMETERS)
        calls.append(f"{json.dumps(before)} {arguments} {json.dumps(behind)}")
    return "(" + " | ".join(calls) + ")"


class GrammarCompiler:
    """Compiles grammars for one tokenizer."""

    def __init__(self, renderer: ChatRenderer) -> None:
        """Build the tokenizer's index; `ConfigError` without the extra."""
        try:
            from llguidance import LLTokenizer
        except ImportError:
            raise ConfigError(f"constrained answers need llguidance: {install_hint('grammar')}") from None
        self._end_id = renderer.stop_token_ids[0]
        self._tokenizer = LLTokenizer(
            renderer.serialized_tokenizer, n_vocab=renderer.vocab_size, eos_token=self._end_id
        )

    def compile(self, term: str) -> "GrammarMask":
        """Return a mask at the start of the Lark term ``term``; `ConfigError` for one that is not understood."""
        from llguidance import LLMatcher

        matcher = LLMatcher(self._tokenizer, LLMatcher.grammar_from_lark(f"start: {term}"), log_level=0)
        if matcher.is_error():
            raise ConfigError(f"the schema cannot be constrained to: {matcher.get_error()[:500]}")
        return GrammarMask(matcher, self._end_id)


class GrammarMask:
    """The tokens that continue one answer."""

    def __init__(self, matcher: Any, end_id: int) -> None:
        self._matcher = matcher
        self._end_id = end_id

    def allowed(self, num_tokens: int) -> np.ndarray:
        """Return [num_tokens] bool; the end of the message alone where nothing else can follow."""
        allowed = np.zeros(num_tokens, dtype=bool)
        if not self._matcher.is_error() and not self._matcher.is_stopped():
            bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
            known = np.unpackbits(bits, bitorder="little", count=min(num_tokens, 8 * len(bits)))
            allowed[: len(known)] = known
        if not allowed.any():
            allowed[self._end_id] = True
        return allowed

    def accept(self, token_id: int) -> None:
        """Move behind a sampled token."""
        self._matcher.consume_token(token_id)
