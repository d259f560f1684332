"""The pipelines by the type of their configuration. Adding a class is one line here (docs/howto/pipeline.md)."""

from __future__ import annotations

from typing import Any

from repairgym.config.pipeline import PipelineConfig
from repairgym.pipelines.base import Pipeline
from repairgym.pipelines.compact import CompactPipeline
from repairgym.pipelines.full import FullPipeline
from repairgym.pipelines.paper_b import PaperBPipeline
from repairgym.pipelines.simplified import SimplifiedPipeline
from repairgym.sandbox.cache import ExecutionCache
from repairgym.tools.base import ToolServices

PIPELINES: dict[str, type[Pipeline[Any]]] = {
    "compact": CompactPipeline,
    "full": FullPipeline,
    "paper_b": PaperBPipeline,
    "simplified": SimplifiedPipeline,
}


def make_pipeline(config: PipelineConfig, cache: ExecutionCache) -> Pipeline[Any]:
    """The pipeline of ``config``.

    Raises:
        ConfigError: a tool that does not exist.
    """
    return PIPELINES[config.type](config, ToolServices(config, cache))
