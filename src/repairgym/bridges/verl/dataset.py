"""Tasks as rows of verl's data set (`verl.utils.dataset.rl_dataset.RLHFDataset`).

Reads tasks; makes a Parquet file. Needs pyarrow. Guarantees: a row names its task and holds nothing that its agent may
not see; a file has rows of one split, and verl trains on the training split only.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from repairgym.errors import ConfigError, TaskError, install_hint
from repairgym.records import Task
from repairgym.tasks.layers.atomic_write import written_whole

AGENT_NAME = "repairgym"


def rows_of(tasks: Sequence[Task]) -> list[dict[str, Any]]:
    """Make one row per task.

    verl requires a prompt. The issue text is there for people who look at the file; the pipeline makes the prompt that
    an agent reads when its episode opens.
    """
    return [
        {
            "data_source": f"repairgym/{task.source}",
            "agent_name": AGENT_NAME,
            "prompt": [{"role": "user", "content": task.issue}],
            "reward_model": {"style": "rule", "ground_truth": ""},
            "extra_info": {"index": number, "task_id": task.id, "split": task.split},
        }
        for number, task in enumerate(tasks)
    ]


def write_rows(tasks: Sequence[Task], path: Path) -> int:
    """Write the rows of ``tasks``; returns their number.

    Raises:
        TaskError: there is none, or they are of several splits.
        ConfigError: pyarrow is not installed.
        DiskFullError: no room; the previous file is intact.
    """
    splits = sorted({task.split for task in tasks})
    if len(splits) != 1:
        raise TaskError(
            f"{path} would hold tasks of the splits {splits or 'none'}, expected one; see: repairgym tasks show"
        )
    arrow = _pyarrow()
    with written_whole(path) as stream:
        arrow.parquet.write_table(arrow.Table.from_pylist(rows_of(tasks)), stream)
    return len(tasks)


def _pyarrow() -> Any:
    try:
        import pyarrow.parquet
    except ImportError:
        raise ConfigError(f"Parquet files need pyarrow; install it: {install_hint('datasets')}") from None
    return pyarrow
