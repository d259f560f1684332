from __future__ import annotations

import math

import pytest
from tokenizers import Tokenizer

from repairgym.ledger import LedgerBuilder
from repairgym.report.tokens import LEVEL_LABELS, Piece, find_tokenizer, read_pieces


@pytest.fixture(scope="module")
def tokenizer(synthetic_run):
    return find_tokenizer(synthetic_run)


def test_pieces_of_an_action_are_its_text(tokenizer, trajectory_maker):
    trajectory = trajectory_maker(steps=[("edit", "@1 « => → # ünï", "ok", "")])
    (turn,) = trajectory.turns
    start, end = turn.action_span
    pieces = read_pieces(trajectory.ledger, tokenizer, start, end - start)
    assert "".join(piece.text for piece in pieces) == turn.action + "\n"
    assert all(piece.is_action for piece in pieces)


def test_a_character_of_several_tokens_is_one_piece(tokenizer):
    ids = tokenizer.encode("→a").ids
    assert len(ids) == 4
    ledger = LedgerBuilder()
    ledger.append_action(ids, [-0.1, -0.2, -0.3, -1.0], 7)
    pieces = read_pieces(ledger.build(), tokenizer, 0)
    assert [(piece.text, piece.log_prob) for piece in pieces] == [("→", pytest.approx(-0.6)), ("a", -1.0)]


@pytest.mark.parametrize(("probability", "level"), [(1.0, 0), (0.9, 1), (0.6, 3), (0.3, 4), (0.1, 5), (1e-9, 7)])
def test_levels_of_the_color_scale(probability, level):
    piece = Piece(0, (1,), "x", True, math.log(probability) + 1e-12, 0, True)
    assert piece.level == level < len(LEVEL_LABELS)


def test_a_broken_tokenizer_is_passed_over(tmp_path, tokenizer):
    assert find_tokenizer(tmp_path) is None
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    (tmp_path / "a" / "tokenizer.json").write_text("{")
    tokenizer.save(str(tmp_path / "b" / "tokenizer.json"))
    assert isinstance(find_tokenizer(tmp_path), Tokenizer)
