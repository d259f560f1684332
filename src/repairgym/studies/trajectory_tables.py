"""A run as tables for other programs: trajectories or training samples, in Parquet.

Reads a run store; makes a Parquet file, or a Hugging Face data set folder (``data/<split>-00000-of-00001.parquet``).
Needs pyarrow. Invariants: token ids, log-probabilities and weights come out as they were stored, bit for bit; rows come
in the order of step, group and id, whatever order they were stored in; a file or folder appears whole or not at all.
"""

import json
from collections.abc import Iterable, Iterator
from itertools import groupby, islice
from pathlib import Path
from typing import Any

from repairgym.config.algorithms import TOKEN_ADVANTAGES, TURN_ADVANTAGES
from repairgym.config.commands import TrajectoryTablesConfig
from repairgym.errors import ConfigError, InputError, install_hint
from repairgym.learning.samples import Sample
from repairgym.records import Trajectory
from repairgym.rollout.rows import TrajectoryRow
from repairgym.rollout.store import RunStore
from repairgym.tasks.layers.atomic_write import folder_written_whole, written_whole
from repairgym.training.rollout_batch import advantages_of, make_trajectory_groups, samples_of

Fields = dict[str, Any]
_BATCH_ROWS = 64
"""Rows in memory at once, samples by the iteration; a trajectory holds its texts and its tokens."""


def export_run(store: RunStore, out: Path, config: TrajectoryTablesConfig) -> int:
    """Write what ``config`` asks for to ``out``; returns the number of rows.

    Raises:
        ConfigError: pyarrow is not installed, or samples of no phase or without one advantage each.
        InputError: there is nothing to write, or ``out`` cannot be replaced.
        DiskFullError: no room; what was there before is intact.
    """
    arrow = _pyarrow()
    if config.what == "samples":
        _check_samples(config)
    rows = sorted(store.rows(phase=config.phase or None), key=lambda row: (row.phase, row.step, row.group_id, row.id))
    if not rows:
        phases = ", ".join(store.num_trajectories()) or "none"
        raise InputError(f"{store.path} has no trajectory of phase {config.phase!r}; its phases: {phases}")
    schema = _schema(arrow, config)
    if config.layout == "parquet":
        if out.is_dir():
            raise InputError(f"{out} is a folder, expected a file to write Parquet to")
        with written_whole(out) as stream:
            return _write(arrow, stream, schema, _fields(store, rows, config))
    num_rows = 0
    with folder_written_whole(out) as place:
        (place / "data").mkdir()
        for split in dict.fromkeys(row.split for row in rows):
            members = [row for row in rows if row.split == split]
            with (place / "data" / f"{split}-00000-of-00001.parquet").open("wb") as stream:
                num_rows += _write(arrow, stream, schema, _fields(store, members, config))
    return num_rows


def _check_samples(config: TrajectoryTablesConfig) -> None:
    """Raise `ConfigError` for samples of no phase, or with advantages that are more than a number each."""
    if not config.phase:
        raise ConfigError("samples have advantages within one phase; name it, e.g. phase=rl")
    kind = config.algorithm.advantage.type
    if kind in (*TURN_ADVANTAGES, *TOKEN_ADVANTAGES):
        what = "each turn" if kind in TURN_ADVANTAGES else "each token, by the model in training"
        raise ConfigError(
            f"advantage.type={kind!r} gives an advantage to {what}, and a row has one for the whole sample; choose "
            "group, dr_grpo, rloo or reinforce_pp, or export what=trajectories and compute your own"
        )


def _write(arrow: Any, stream: Any, schema: Any, fields: Iterator[Fields]) -> int:
    num_rows = 0
    with arrow.parquet.ParquetWriter(stream, schema, compression="zstd") as writer:
        while batch := list(islice(fields, _BATCH_ROWS)):
            writer.write_table(arrow.Table.from_pylist(batch, schema=schema))
            num_rows += len(batch)
    return num_rows


def _fields(store: RunStore, rows: Iterable[TrajectoryRow], config: TrajectoryTablesConfig) -> Iterator[Fields]:
    if config.what == "trajectories":
        for row in rows:
            yield _trajectory_fields(row, store.trajectory(row.id))
        return
    # An iteration at once, as in training: some estimators compare its groups with each other.
    for _, members in groupby(rows, key=lambda row: row.step):
        known = {row.id: row for row in members}
        groups = make_trajectory_groups([store.trajectory(trajectory_id) for trajectory_id in known])
        for sample in samples_of(groups, advantages_of(groups, config.algorithm), config.algorithm):
            yield _sample_fields(known[sample.trajectory_id], sample)


def _trajectory_fields(row: TrajectoryRow, trajectory: Trajectory) -> Fields:
    ledger = trajectory.ledger
    return {
        **row.model_dump(mode="json", exclude={"durations_s"}),
        "durations": [{"stage": stage, "seconds": seconds} for stage, seconds in row.durations_s.items()],
        "pipeline": trajectory.pipeline,
        "sandbox_backend": trajectory.sandbox_backend,
        "final_patch": trajectory.final_patch,
        "verdict_json": trajectory.verdict.model_dump_json(),
        "turns": [
            {
                **turn.model_dump(include={"action", "tool", "observation", "error", "tool_s"}),
                "arguments_json": json.dumps(turn.arguments),
                "action_start": turn.action_span[0],
                "action_end": turn.action_span[1],
            }
            for turn in trajectory.turns
        ],
        "token_id": ledger.token_id,
        "is_action": ledger.is_action,
        "log_prob": ledger.log_prob,
        "policy_version": ledger.policy_version,
        "branches": [
            {"start": branch.start, "spans": [list(span) for span in branch.spans]} for branch in ledger.branches
        ],
    }


def _sample_fields(row: TrajectoryRow, sample: Sample) -> Fields:
    return {
        "trajectory_id": row.id,
        **row.model_dump(include={"group_id", "task_id", "step", "split"}),
        "reward": sample.reward,
        "advantage": float(sample.advantage),
        "token_id": sample.token_id,
        "weight": sample.weight,
        "old_log_prob": sample.old_log_prob,
        "turn": sample.turn,
    }


def _schema(arrow: Any, config: TrajectoryTablesConfig) -> Any:
    text, whole, real, ids = arrow.string(), arrow.int64(), arrow.float64(), arrow.list_(arrow.int32())
    tokens = [("token_id", ids), ("log_prob", arrow.list_(arrow.float32()))]
    if config.what == "samples":
        names = [("trajectory_id", text), ("group_id", text), ("task_id", text), ("step", whole), ("split", text)]
        reals = arrow.list_(arrow.float32())
        arrays = [("token_id", ids), ("weight", reals), ("old_log_prob", reals), ("turn", ids)]
        return arrow.schema([*names, ("reward", real), ("advantage", real), *arrays])
    turn = arrow.struct(
        [(name, text) for name in ("action", "tool", "arguments_json", "observation", "error")]
        + [("action_start", whole), ("action_end", whole), ("tool_s", real)]
    )
    # A list, because `datasets` knows no maps.
    duration = arrow.struct([("stage", text), ("seconds", real)])
    branch = arrow.struct([("start", whole), ("spans", arrow.list_(arrow.list_(whole)))])
    return arrow.schema(
        [(name, text) for name in ("id", "phase", "group_id", "task_id", "split", "policy_id", "pipeline")]
        + [(name, text) for name in ("sandbox_backend", "verdict", "reason", "stop_reason", "created_at")]
        + [(name, whole) for name in ("step", "seed", "num_turns", "num_tokens", "num_action_tokens")]
        + [("reward", real), ("is_restored", arrow.bool_()), ("durations", arrow.list_(duration))]
        + [("final_patch", text), ("verdict_json", text), ("turns", arrow.list_(turn)), *tokens]
        + [("is_action", arrow.list_(arrow.bool_())), ("policy_version", ids), ("branches", arrow.list_(branch))]
    )


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ConfigError(f"Parquet needs pyarrow, which is not installed; {install_hint('datasets')}") from error
    return pyarrow
