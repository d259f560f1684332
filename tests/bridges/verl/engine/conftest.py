"""Real tasks of the task manifest, and verl's configuration as verl composes it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from repairgym.bridges.verl.trainer_process import own_ray_environment
from repairgym.config.cluster import VerlConfig
from repairgym.config.tasks import RebuildConfig
from repairgym.tasks.manifest.manifest import TaskManifest
from repairgym.tasks.manifest.rebuild import rebuild_manifest
from repairgym.tasks.store import TaskStore

ROOT = Path(__file__).parents[4]
NUM_TASKS = 6
# verl and Ray read these when they are imported, which tests do only when they run.
os.environ.update(
    own_ray_environment(),
    VERL_USE_EXTERNAL_MODULES="repairgym.bridges.verl.plugin",
    VERL_PLATFORM="cpu",
    VERL_ENGINE_DEVICE="cuda",
    VERL_ENGINE_VENDOR="nvidia",
)


@pytest.fixture(scope="session")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Mutations of functions of funcy, whose sandboxes are real."""
    folder = tmp_path_factory.mktemp("tasks")
    config = RebuildConfig(packages=("funcy",), splits=("train",), sources=("mutations",))
    tasks = rebuild_manifest(TaskManifest(Path("catalog/real.toml")), folder / "all", config).load()
    TaskStore(folder / "some").save(tasks[:NUM_TASKS], {}, {})
    return folder / "some"


@pytest.fixture
def base() -> Path:
    """The shipped model, a Hugging Face folder of three million parameters."""
    return ROOT / "src/repairgym/data/base"


@pytest.fixture
def cpu() -> VerlConfig:
    return VerlConfig(
        device="cpu",
        engine="embedded",
        gpus_per_node=2,
        rollout_tensor_parallel=1,
        sequence_parallel=1,
        is_offloaded=False,
        num_cpus=10,
    )


@pytest.fixture
def compose() -> Callable[[Path], Any]:
    """verl's configuration, composed as `verl.trainer.main_ppo` does it."""

    def composed(path: Path) -> Any:
        from hydra import compose, initialize_config_dir

        with initialize_config_dir(str(path.parent), version_base=None):
            return compose(path.stem)

    return composed
