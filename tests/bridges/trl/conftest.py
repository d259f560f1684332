"""Episodes over scripted sandboxes, and a trainer reduced to what a `rollout_func` looks at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from repairgym.bridges.trl.episodes import Episodes
from repairgym.config.models import EngineConfig, ModelConfig
from repairgym.config.pipeline import PipelineConfig
from repairgym.config.rollout import RolloutConfig
from repairgym.inference.loading import create_model
from repairgym.inference.tokenizer import train_tokenizer
from repairgym.records import Task
from repairgym.rollout.store import RunStore
from repairgym.tasks.build.validation import TaskLayers
from repairgym.testing.scripted import ScriptedBackend, scripted_answer

ROLLOUT = RolloutConfig(
    pipeline=PipelineConfig(max_len_tokens=200, max_turns=3, max_action_tokens=8),
    engine=EngineConfig(num_slots=8, max_len_tokens=200),
    max_attempts=1,
    backoff_s=0.0,
)
TEXTS = ["user\nassistant\nf in m.py is wrong edit < => <= @2 test undo submit passed 1 failed 1 of 1: no"] * 20


class Accelerator:
    """One process."""

    process_index = 0
    distributed_type = SimpleNamespace(value="NO")

    def unwrap_model(self, model: PreTrainedModel, *, keep_torch_compile: bool) -> PreTrainedModel:
        return model


@dataclass
class Trainer:
    """What the bridge reads of a `GRPOTrainer`."""

    model: PreTrainedModel
    processing_class: PreTrainedTokenizerFast
    args: SimpleNamespace
    accelerator: Accelerator = field(default_factory=Accelerator)
    state: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(global_step=0))
    tools: list[Callable[..., Any]] = field(default_factory=list)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer(TEXTS, 420, 40)


@pytest.fixture
def trainer(tokenizer: PreTrainedTokenizerFast, tiny_config: Callable[..., ModelConfig]) -> Trainer:
    settings: dict[str, Any] = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": None, "repetition_penalty": 1.0}
    settings |= {"generation_kwargs": None, "chat_template_kwargs": None, "cache_implementation": None}
    settings |= {"max_tool_calling_iterations": None, "use_vllm": False}
    settings |= {"use_transformers_paged": False, "use_transformers_continuous_batching": False}
    args = SimpleNamespace(**settings, max_completion_length=200, seed=1)
    return Trainer(create_model(tiny_config(len(tokenizer))).train(), tokenizer, args)


@pytest.fixture
def make_episodes(task: Task, tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> Iterator[Callable[..., Episodes]]:
    """Episodes on ``train-0``, ``train-1`` and ``test-0``, ended after the test. A number instead of a back end: one
    whose first sandboxes fail."""
    names = {"train-0": "train", "train-1": "train", "test-0": "test"}
    tasks = [task.model_copy(update={"id": name, "split": split}) for name, split in names.items()]
    with ExitStack() as stack:

        def make(sandboxes: ScriptedBackend | int = 0, store: RunStore | None = None, **changes: object) -> Episodes:
            is_number = isinstance(sandboxes, int)
            backend = ScriptedBackend(scripted_answer(), sandboxes) if is_number else sandboxes
            config = ROLLOUT.model_copy(update=changes)
            layers = TaskLayers(tmp_path, tmp_path)
            return stack.enter_context(Episodes(tasks, tokenizer, config, backend, lambda _: layers, store=store))

        yield make
