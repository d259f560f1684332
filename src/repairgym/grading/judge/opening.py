"""From a configuration to a judge: loads the model that it names.

Reads a `JudgeConfig`; makes a `Judge`, or None where none is wanted. Invariant: torch is imported only when a model is
loaded.
"""

from __future__ import annotations

from pathlib import Path

from repairgym.config.judge import JudgeConfig
from repairgym.config.models import EngineConfig
from repairgym.errors import ConfigError
from repairgym.grading.judge.judge import Judge


def open_judge(config: JudgeConfig) -> Judge | None:
    """The judge that ``config`` asks for; None when it is not enabled.

    Raises:
        ConfigError: it is enabled without a model, or the engine cannot serve the model.
        ModelFolderError: the folder holds no model.
    """
    if not config.is_enabled:
        return None
    if not config.model:
        raise ConfigError("grading.judge.is_enabled is true, but grading.judge.model is empty; name a model folder")
    from repairgym.inference.base import PolicyTextModel
    from repairgym.inference.embedded import EmbeddedPolicy
    from repairgym.inference.loading import load_tokenizer
    from repairgym.inference.renderer import ChatRenderer

    folder = Path(config.model)
    renderer = ChatRenderer(load_tokenizer(folder))
    engine = EngineConfig(num_slots=1, max_len_tokens=config.max_len_tokens)
    policy = EmbeddedPolicy.from_folder(folder, engine)
    return Judge(PolicyTextModel(policy, renderer, temperature=config.temperature), config)
