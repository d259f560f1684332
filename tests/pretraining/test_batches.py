"""Batches leave out what is held out in every process, and a run that becomes shorter keeps its last share."""

from __future__ import annotations

from pathlib import Path

import pytest

from repairgym.config.models import ModelConfig
from repairgym.config.recipes import CorrectionConfig, PretrainingConfig
from repairgym.errors import ConfigError
from repairgym.inference.loading import load_tokenizer, shipped_base
from repairgym.inference.renderer import ChatRenderer
from repairgym.pretraining.batches import BatchSource, Schedule, batches, load_corpus
from repairgym.pretraining.corpus import corpus_functions, distribution_files, function_digest, save_functions
from repairgym.pretraining.pretraining import pretrain


@pytest.fixture(scope="module")
def corpus_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("corpus") / "functions.jsonl.gz"
    save_functions(list(corpus_functions(distribution_files("jinja2"), frozenset(), set())), file)
    return file


@pytest.fixture
def config(corpus_file: Path) -> PretrainingConfig:
    """Ten steps, the last three with corrections."""
    return PretrainingConfig(functions=str(corpus_file), num_tokens=10 * 2048, batch_tokens=2048)


def source_of(config: PretrainingConfig, excluded: frozenset[str] = frozenset()) -> BatchSource:
    return BatchSource(config, load_corpus(config, excluded).train, ChatRenderer(load_tokenizer(shipped_base())))


def test_worker_processes_leave_out_what_is_excluded(config: PretrainingConfig) -> None:
    """One left-out function gives another order of all others, and so other batches."""
    excluded = frozenset(function_digest(it.lines) for it in load_corpus(config).functions[:20])
    source = source_of(config, excluded)
    alone = list(batches(source, config, shipped_base(), 8, Schedule(config), excluded))
    with_worker = config.model_copy(update={"num_workers": 1})
    by_worker = list(batches(source, with_worker, shipped_base(), 8, Schedule(config), excluded))
    assert [[s.token_id.tolist() for s in batch] for batch in alone] == [
        [s.token_id.tolist() for s in batch] for batch in by_worker
    ]


@pytest.mark.parametrize(
    ("num_steps", "num_done", "got_steps", "corrected_from"),
    [
        (10, 2, 10, 7),  # no shorter
        (20, 2, 10, 7),  # never longer
        (5, 2, 5, 4),  # the last 30 % of 5 steps, 3.5 rounded to even
        (3, 3, 3, 3),  # no time left: nothing remains
        (1, 3, 3, 3),
        (8, 7, 8, 7),  # it has begun and stays
    ],
)
def test_a_shorter_run_keeps_its_last_share(
    config: PretrainingConfig, num_steps: int, num_done: int, got_steps: int, corrected_from: int
) -> None:
    schedule = Schedule(config)
    assert (schedule.num_steps, schedule.corrected_from) == (10, 7)
    schedule.shorten(num_steps, num_done)
    assert (schedule.num_steps, schedule.corrected_from) == (got_steps, corrected_from)
    without = Schedule(config.model_copy(update={"corrections": CorrectionConfig(token_share=0.0)}))
    without.shorten(num_steps, num_done)
    assert without.corrected_from == without.num_steps == got_steps


def test_batches_follow_a_schedule_that_becomes_shorter(config: PretrainingConfig) -> None:
    schedule, source = Schedule(config), source_of(config)
    sizes = []
    for batch in batches(source, config, shipped_base(), 0, schedule):
        sizes.append(sum(map(len, batch)))
        if len(sizes) == 2:
            schedule.shorten(5, 2)
    assert [size >= 2048 for size in sizes] == [True, True, True, True, False]
    assert sizes[4] >= 1024


class Killed(Exception):
    """What ends a run in the middle."""


def test_a_run_that_searches_at_each_save_keeps_its_saves(config: PretrainingConfig, tmp_path: Path) -> None:
    """Without corrections saves may be moved."""
    model = ModelConfig(num_layers=1, num_heads=1, num_kv_heads=1, head_dim=8, max_len_tokens=2048, is_tied=True)
    config = config.model_copy(update={"model": model, "num_tokenizer_functions": 50, "save_every_steps": 2})

    def killed(phase: str, done: int, total: int, detail: str) -> None:
        if phase == "base" and done == 3:
            raise Killed

    for share in (0.5, 0.0):
        begun = config.model_copy(
            update={"corrections": CorrectionConfig(token_share=share, max_edits=1, num_searches=8)}
        )
        resumed = begun.model_copy(update={"save_every_steps": 3})
        out = tmp_path / f"base-{share}"
        with pytest.raises(Killed):
            pretrain(begun, out, killed)
        with pytest.raises(ConfigError if share else Killed, match="save_every_steps=3" if share else None):
            pretrain(resumed, out, killed)
