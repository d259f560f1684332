"""Episodes on damage and on changes end in success, and wrong attempts weigh nothing."""

from __future__ import annotations

import ast
import random
import textwrap
from pathlib import Path

import pytest

from repairgym.config.models import TeacherNoise
from repairgym.config.recipes import PretrainingConfig
from repairgym.errors import InputError
from repairgym.inference.loading import load_tokenizer, shipped_base
from repairgym.inference.renderer import ChatRenderer
from repairgym.pretraining.batches import (
    BatchSource,
    Corpus,
    Schedule,
    batches,
    load_changes,
    load_corpus,
    weighted_sample,
)
from repairgym.pretraining.changes import FunctionChange
from repairgym.pretraining.corpus import (
    CorpusFunction,
    corpus_functions,
    distribution_files,
    function_digest,
    save_functions,
)
from repairgym.pretraining.damage import damaged
from repairgym.pretraining.repair_episodes import Repair, play_repair, wrong_action

REPAIR = Repair(
    "pkg/m.py",
    "f",
    ("def f(a, b):", "    total = a", "    return total.strip()"),
    ("def f(a, b, strict=False):", "    if strict:", "        raise ValueError(a)", "    return str(a).strip()"),
)


@pytest.fixture(scope="module")
def functions() -> list[CorpusFunction]:
    return list(corpus_functions(distribution_files("jinja2"), frozenset(), set()))


@pytest.mark.parametrize("seed", range(30))
def test_an_episode_ends_in_success(seed: int) -> None:
    segments = play_repair(REPAIR, TeacherNoise(knows_fix=0.3), random.Random(seed))
    assert segments is not None
    kinds = [segment.kind for segment in segments[1::2]]
    assert kinds[-2:] == ["test", "submit"]
    assert segments[-2].text.startswith("passed")
    for at, kind in enumerate(kinds):
        if kind == "guess" and not segments[2 * at + 2].text.startswith("error"):
            assert kinds[at + 1 : at + 3] == ["test", "undo"]


def test_wrong_attempts_weigh_nothing() -> None:
    renderer = ChatRenderer(load_tokenizer(shipped_base()))
    config = PretrainingConfig(context_weight=0.0, control_weight=0.0)
    segments = play_repair(REPAIR, TeacherNoise(knows_fix=0.0), random.Random(1))
    assert segments is not None
    assert "guess" in {segment.kind for segment in segments}
    sample = weighted_sample(segments, renderer, config)
    fixes = sum(len(renderer.action_ids(segment.text)) for segment in segments if segment.kind == "fix")
    assert int((sample.weight > 0).sum()) == fixes


def test_a_wrong_action_is_none_of_the_right_ones() -> None:
    generator = random.Random(0)
    right = ["edit a => b @2", "delete @1"]
    assert all(wrong_action(REPAIR.before, right, generator) not in right for _ in range(300))


def test_damaged_functions_parse_and_differ(functions: list[CorpusFunction]) -> None:
    generator, num_damaged = random.Random(0), 0
    for function in functions[:150]:
        broken = damaged(function, generator)
        if broken is None:
            continue
        num_damaged += 1
        assert broken != function.lines
        ast.parse(textwrap.dedent("\n".join(broken)))
        assert play_repair(Repair("m.py", "f", broken, function.lines), TeacherNoise(), generator) is not None
    assert num_damaged > 100


def test_a_batch_follows_from_seed_and_step_in_any_process(functions: list[CorpusFunction], tmp_path: Path) -> None:
    """One that begins later makes what another makes after its first batch."""
    save_functions(functions, tmp_path / "functions.jsonl.gz")
    change = FunctionChange(
        package="p", version_before="1", version_after="2",
        path="m.py", name="f", before=REPAIR.before, after=REPAIR.after,
    )  # fmt: skip
    (tmp_path / "changes.jsonl").write_text(f"{change.model_dump_json()}\n" * 310)
    config = PretrainingConfig(
        functions=str(tmp_path / "functions.jsonl.gz"),
        changes=str(tmp_path / "changes.jsonl"),
        change_share=0.3,
        damage_share=0.3,
    )
    corpus = load_corpus(config)
    assert len(corpus.functions) == len(functions)
    source = BatchSource(config, corpus.train, ChatRenderer(load_tokenizer(shipped_base())))
    schedule = Schedule(config.model_copy(update={"num_tokens": 5 * config.batch_tokens, "final_share": 0.2}))
    alone = list(batches(source, config, shipped_base(), 2, schedule))
    by_worker = list(batches(source, config.model_copy(update={"num_workers": 1}), shipped_base(), 3, schedule))
    texts = [[sample.token_id.tolist() for sample in batch] for batch in alone]
    assert texts[1:] == [[sample.token_id.tolist() for sample in batch] for batch in by_worker]
    num_tokens = [sum(len(tokens) for tokens in batch) for batch in texts]
    assert num_tokens[0] >= config.batch_tokens > num_tokens[2] >= config.batch_tokens / 2


def test_files_that_are_none_are_named(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("{}x")
    with pytest.raises(InputError, match="no file of changes"):
        load_changes(tmp_path / "x")
    with pytest.raises(InputError, match="no file of functions"):
        load_corpus(PretrainingConfig(functions=str(tmp_path / "x")))
    with pytest.raises(ValueError, match="changes=FILE"):
        PretrainingConfig(change_share=0.1)


def test_functions_of_a_file_that_are_excluded_are_left_out(functions: list[CorpusFunction], tmp_path: Path) -> None:
    save_functions(functions, tmp_path / "f.gz")
    config = PretrainingConfig(functions=str(tmp_path / "f.gz"))
    excluded = frozenset({function_digest(functions[0].lines)})
    assert isinstance(load_corpus(config, excluded), Corpus)
    assert len(load_corpus(config, excluded).functions) == len(functions) - 1
