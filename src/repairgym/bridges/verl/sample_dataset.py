"""Samples as a data set of verl's SFT trainer, which imports this class by name (``data.custom_cls``).

Reads Parquet files with the columns `TOKENS` and `MASK`. Guarantees: token ids reach the trainer as they are stored;
verl's own data set would render messages and encode them again.
"""

from typing import Any

import pyarrow as arrow
import pyarrow.parquet as parquet
import torch

TOKENS, MASK = "input_ids", "loss_mask"


class SampleDataset(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Rows of token ids and the mask of those that are learned."""

    def __init__(self, parquet_files: Any, *_: Any, **__: Any) -> None:
        """Read ``parquet_files``, one path or several; tokenizer and settings of verl's are not needed."""
        files = [parquet_files] if isinstance(parquet_files, str) else list(parquet_files)
        self._rows: arrow.Table = arrow.concat_tables([parquet.read_table(file) for file in files])

    def __len__(self) -> int:
        return int(self._rows.num_rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids, mask = (torch.tensor(self._rows[name][index].as_py(), dtype=torch.long) for name in (TOKENS, MASK))
        return {TOKENS: ids, "position_ids": torch.arange(len(ids)), MASK: mask}
