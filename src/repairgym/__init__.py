"""RepairGym: train agents that repair real code with reinforcement learning, and prove what they can do.

The names of ``__all__`` are the public API (`docs/reference/api.md`). They are imported on first use, so that
``import repairgym`` is fast and needs no torch.
"""

from typing import Any

__version__ = "0.1.0"
_RECORDS = ("Task", "Trajectory", "Verdict")
_API = (
    "Learner", "Run", "build_tasks", "evaluate", "grade", "group_advantages", "load_config", "load_policy",
    "load_tasks", "open_run", "policy_loss", "run_episodes", "shipped_base", "split_tasks", "train_rl", "train_sft",
)  # fmt: skip
__all__ = [*_API, *_RECORDS]


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name not in __all__:
        raise AttributeError(f"module 'repairgym' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module("repairgym.records" if name in _RECORDS else "repairgym.api"), name)


def __dir__() -> list[str]:
    """List the public names."""
    return sorted([*globals(), *__all__])
