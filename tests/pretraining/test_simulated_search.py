"""Searches in simulation: what the policy writes, what the environment answers, what is learned from it."""

import random

import numpy as np
import pytest

from repairgym.config.models import EngineConfig
from repairgym.config.recipes import CorrectionConfig
from repairgym.inference.engine.core import Engine
from repairgym.inference.loading import load_model, load_tokenizer, shipped_base
from repairgym.inference.renderer import ChatRenderer
from repairgym.pretraining.corpus import corpus_functions
from repairgym.pretraining.simulated_search import Corrections, correction_samples, run_searches, score_searches

SOURCES = {
    "clip": "    if value < low:\n        return low\n    return value if value <= high else high\n",
    "total": "    result = 0\n    for item in value:\n        result += item * low\n    return result\n",
    "find": "    for k, item in enumerate(value):\n        if item == low:\n            return k\n    return -1\n",
}


@pytest.fixture(scope="module")
def functions(tmp_path_factory):
    folder = tmp_path_factory.mktemp("functions")
    files = []
    for name, body in SOURCES.items():
        (folder / f"{name}.py").write_text(f"def {name}(value, low, high):\n{body}")
        files.append((f"pkg/{name}.py", folder / f"{name}.py"))
    return list(corpus_functions(files, frozenset(), set())) * 3


@pytest.fixture(scope="module")
def model():
    return load_model(shipped_base())


@pytest.fixture(scope="module")
def renderer():
    return ChatRenderer(load_tokenizer(shipped_base()))


@pytest.fixture(scope="module")
def searches(functions, model, renderer):
    return run_searches(Engine(model, EngineConfig(num_slots=5, max_len_tokens=1024)), renderer, functions, 6, 0)


def test_searches_end_in_a_repair_or_at_the_bound(searches, functions):
    assert len(searches) == len(functions)
    for search in searches:
        assert search.is_repaired == search.episode.is_repaired
        assert search.is_repaired or len(search.edits) == 6
        assert len(search.decisions) == len(search.edits)
        assert all(edit.startswith("edit") for edit in search.edits)
    assert any(search.is_repaired for search in searches)
    assert any(len(search.edits) > 1 for search in searches)


def test_the_transcript_holds_the_actions(searches, renderer):
    for search in searches:
        for position, edit in zip(search.decisions, search.edits, strict=True):
            ids = search.token_ids[position:]
            assert renderer.decode(ids[: ids.index(renderer.stop_token_ids[0])] if edit else []) == edit
        text = renderer.decode(search.token_ids)
        assert text.count("error: ") == search.num_errors
        assert text.count("undone") == len(search.edits) - search.num_errors - search.is_repaired
        assert ("passed" in text.rpartition("test<|im_end|>")[2]) == search.is_repaired


def test_the_same_seed_gives_the_same_searches(searches, functions, model, renderer):
    again = run_searches(Engine(model, EngineConfig(num_slots=9, max_len_tokens=1024)), renderer, functions, 6, 0)
    assert [search.edits for search in again] == [search.edits for search in searches]


def test_scores_count_edits(searches):
    score = score_searches(searches, (1, 6))
    assert score.solved_within[6] == sum(search.is_repaired for search in searches) / len(searches)
    assert score.solved_within[1] <= score.solved_within[6]
    num_edits = sum(len(search.edits) for search in searches)
    assert score.error_rate * num_edits == pytest.approx(sum(search.num_errors for search in searches))


def test_corrections_teach_the_right_edit_at_each_decision(searches, renderer):
    samples = list(correction_samples(searches, 3, random.Random(0)))
    by_search = {f"search-{number}": search for number, search in enumerate(searches)}
    assert {sample.group_id for sample in samples} == set(by_search)
    for sample in samples:
        search = by_search[sample.group_id]
        position = int(np.flatnonzero(sample.weight)[0])
        assert position in search.decisions
        assert sample.token_id[position:].tolist() == search.fix_ids
        assert sample.token_id[:position].tolist() == search.token_ids[:position]


def test_batches_follow_from_seed_step_and_weights(functions, model, renderer):
    config = CorrectionConfig(num_searches=6, max_edits=3)
    batches = []
    for _ in range(2):
        corrections = Corrections(config, model, renderer, 1024, seed=1)
        assert corrections.is_empty
        corrections.refresh(functions, 100)
        assert not corrections.is_empty
        batches.append(corrections.batch(103, 2000))
    assert [sample.token_id.tolist() for sample in batches[0]] == [sample.token_id.tolist() for sample in batches[1]]
    by_group: dict[str, set[bytes]] = {}
    for sample in batches[0]:
        by_group.setdefault(sample.group_id, set()).add(sample.token_id[:8].tobytes())
    assert all(len(starts) == 1 for starts in by_group.values())
    assert sum(map(len, batches[0])) >= 2000
