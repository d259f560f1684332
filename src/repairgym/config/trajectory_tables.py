"""What `repairgym trajectories parquet` writes."""

from __future__ import annotations

from typing import Literal

from repairgym.config.learning import AlgorithmConfig
from repairgym.records import Record

ExportKind = Literal["trajectories", "samples"]
ExportLayout = Literal["parquet", "dataset"]


class TrajectoryTablesConfig(Record):
    """`repairgym trajectories parquet`."""

    what: ExportKind = "trajectories"
    """``samples``: token sequences with weights, sampling log-probs and advantages, as a policy update reads them."""
    layout: ExportLayout = "dataset"
    """``dataset``: a folder of Parquet shards by split, which `datasets.load_dataset` reads; ``parquet``: one file."""
    phase: str = ""
    """Phase of the run; empty: all (trajectories only)."""
    algorithm: AlgorithmConfig = AlgorithmConfig()
    """How advantages are computed for samples."""
