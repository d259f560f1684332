"""The oracle and the do-nothing agent in every pipeline, through the pool, the tools and the grader."""

from __future__ import annotations

import pytest

from repairgym.agent.pipelines.registry import PIPELINES
from repairgym.config.commands import RolloutCommandConfig
from repairgym.config.loading import load_config
from repairgym.inference.loading import load_tokenizer
from repairgym.inference.renderer import ChatRenderer
from repairgym.rollout.local import LocalPool
from repairgym.rollout.store import RunStore
from repairgym.studies.without_learning import chosen_tasks, measure_scaffold
from repairgym.tasks.build.validation import TaskLayers
from repairgym.testing.scripted import ScriptedBackend, scripted_answer
from repairgym.training.run import Run


@pytest.mark.parametrize("name", sorted(PIPELINES))
def test_every_pipeline_is_sound(name, base, tmp_path, many_tasks):
    overrides = [f"rollout.pipeline.type={name}", "rollout.engine.max_len_tokens=1048576"]
    config = load_config(RolloutCommandConfig, None, overrides).rollout
    renderer = ChatRenderer(load_tokenizer(base))
    layers = TaskLayers(tmp_path, tmp_path)
    pool = LocalPool(config, lambda: ScriptedBackend(scripted_answer()), lambda task: layers, renderer)
    with RunStore.create(tmp_path / "run.db") as store:
        run = Run(tmp_path, store, pool, many_tasks)
        rates = measure_scaffold(run, name, chosen_tasks(run, 2))
    assert (rates.num_solved, rates.num_solved_by_nothing, rates.num_invalid) == (2, 0, 0)
    assert rates.is_sound
    assert not rates.model_copy(update={"num_solved": 1}).is_sound
    assert not rates.model_copy(update={"num_solved_by_nothing": 1}).is_sound
