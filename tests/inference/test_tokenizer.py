"""The tokenizer: round trips, pieces, labels."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from repairgym.inference.tokenizer import PYTHON_OPERATORS, WHOLE_PIECES, train_tokenizer


def pieces(tokenizer: PreTrainedTokenizerFast, text: str) -> list[str]:
    return [tokenizer.decode([token_id]) for token_id in tokenizer.encode(text)]


@given(
    text=st.text(alphabet=st.one_of(st.characters(codec="utf-8"), st.sampled_from(" \t\n\r@12<|>=*/_a")), max_size=60)
)
@settings(max_examples=200, deadline=None)
def test_round_trip_is_byte_exact(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text
    unsplit = tokenizer.encode(text, split_special_tokens=True)
    assert tokenizer.decode(unsplit) == text


def test_special_text_round_trips_without_special_tokens(tokenizer: PreTrainedTokenizerFast) -> None:
    text = "a <|im_end|> b"
    ids = tokenizer.encode(text, split_special_tokens=True)
    assert tokenizer.convert_tokens_to_ids("<|im_end|>") not in ids
    assert tokenizer.decode(ids) == text


def test_vocabulary_has_the_size_asked_for(tokenizer: PreTrainedTokenizerFast) -> None:
    assert len(tokenizer) == 400
    assert sorted(tokenizer.get_vocab().values()) == list(range(400))


def test_labels_operators_and_roles_are_single_tokens(tokenizer: PreTrainedTokenizerFast) -> None:
    for text in ("@1", "@40", "<|im_start|>", *WHOLE_PIECES):
        assert len(tokenizer.encode(text)) == 1, text
    for operator in PYTHON_OPERATORS:
        assert pieces(tokenizer, f"1{operator}2") == ["1", operator, "2"]


def test_pieces_of_code(tokenizer: PreTrainedTokenizerFast) -> None:
    def split(text: str) -> list[str]:
        results = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str(text)
        return [piece.replace("Ġ", " ").replace("Ċ", "\n") for piece, _ in results]

    assert split("    return low+10  #_a") == ["   ", " return", " low", "+", "1", "0", " ", " #", "_a"]
    assert split("high:\n\n        x  3") == ["high", ":", "\n", "\n        ", "x", " ", " ", "3"]


def test_a_vocabulary_without_room_is_rejected() -> None:
    with pytest.raises(ValueError, match="raise it"):
        train_tokenizer(["text"], vocab_size=270, num_line_labels=0)
