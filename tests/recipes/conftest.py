"""A tiny base model, a scripted sandbox, and a pool in this process."""

import shutil
from functools import partial
from pathlib import Path

import pytest

from repairgym.config.models import EngineConfig
from repairgym.config.pipeline import PipelineConfig
from repairgym.config.rollout import RolloutConfig
from repairgym.inference.loading import create_model, load_tokenizer, save_checkpoint
from repairgym.inference.renderer import ChatRenderer
from repairgym.inference.tokenizer import train_tokenizer
from repairgym.records import Task
from repairgym.rollout.local import LocalPool
from repairgym.rollout.store import RunStore
from repairgym.tasks.build.validation import TaskLayers
from repairgym.testing.scripted import ScriptedBackend, scripted_answer
from repairgym.training.run import Run

ROLLOUT = RolloutConfig(
    pipeline=PipelineConfig(max_len_tokens=200, max_turns=4, max_action_tokens=8),
    engine=EngineConfig(num_slots=16, max_len_tokens=200),
)


@pytest.fixture(scope="module")
def base(tmp_path_factory, tiny_config) -> Path:
    texts = ["user\nassistant\nf in m.py is wrong edit < => <= @2 test undo submit passed 1 failed 1 of 1: no"] * 20
    tokenizer = train_tokenizer(texts, 420, 40)
    folder = tmp_path_factory.mktemp("base") / "base"
    save_checkpoint(create_model(tiny_config(len(tokenizer))), tokenizer, folder)
    return folder


def tasks_of(task: Task) -> dict[str, Task]:
    """The task under several names, in every split."""
    named = {f"train-{k}": "train" for k in range(4)} | {"validation-0": "validation", "test-0": "test"}
    return {name: task.model_copy(update={"id": name, "split": split}) for name, split in named.items()}


def local_pool(folder: Path, base: Path, num_failures: int = 0, **changes: int) -> LocalPool:
    """A pool whose sandboxes are scripted and fail ``num_failures`` times a call; ``changes`` of its config."""
    renderer = ChatRenderer(load_tokenizer(base))
    config = ROLLOUT.model_copy(update=changes)
    return LocalPool(
        config, lambda: ScriptedBackend(scripted_answer(), num_failures), lambda _: TaskLayers(folder, folder), renderer
    )


@pytest.fixture
def rollout() -> RolloutConfig:
    return ROLLOUT


@pytest.fixture
def make_backend():
    return lambda: ScriptedBackend(scripted_answer())


@pytest.fixture
def many_tasks(task) -> dict[str, Task]:
    return tasks_of(task)


@pytest.fixture
def make_pool_of():
    """A pool over any model folder's tokenizer."""
    return local_pool


@pytest.fixture
def make_pool(base):
    return partial(local_pool, base=base)


@pytest.fixture
def open_run(base, many_tasks, make_pool):
    """Opens a run over the tiny base; a second call on the same folder resumes."""

    def open_folder(folder: Path) -> Run:
        path = folder / "run.db"
        store = RunStore.open(path) if path.exists() else RunStore.create(path)
        run = Run(folder, store, make_pool(folder), many_tasks)
        if not run.checkpoint("base").exists():
            shutil.copytree(base, run.checkpoint("base"))
        return run

    return open_folder
