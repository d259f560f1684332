"""The pipelines by the type of their configuration. A new one is a class and one line here (docs/howto/pipeline.md)."""

from typing import Any

from repairgym.agent.pipelines.base import CompactPipeline, Pipeline
from repairgym.agent.pipelines.paper_a import FullPipeline, SimplifiedPipeline
from repairgym.agent.pipelines.paper_b import PaperBPipeline
from repairgym.agent.tools.base import ToolServices
from repairgym.config.pipeline import PipelineConfig
from repairgym.sandbox.cache import ExecutionCache

PIPELINES: dict[str, type[Pipeline[Any]]] = {
    "compact": CompactPipeline,
    "full": FullPipeline,
    "paper_b": PaperBPipeline,
    "simplified": SimplifiedPipeline,
}


def make_pipeline(config: PipelineConfig, cache: ExecutionCache) -> Pipeline[Any]:
    """Return the pipeline of ``config``; ConfigError for a tool that does not exist."""
    return PIPELINES[config.type](config, ToolServices(config, cache))
