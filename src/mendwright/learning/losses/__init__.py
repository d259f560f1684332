"""Losses by name. Adding one: a file with a `Loss` function, a line here, a test against hand values."""

from mendwright.learning.losses.base import Loss, LossOutput, LossSettings
from mendwright.learning.losses.dapo import dapo_loss
from mendwright.learning.losses.sft import sft_loss

LOSSES: dict[str, Loss] = {"dapo": dapo_loss, "sft": sft_loss}

__all__ = ["LOSSES", "Loss", "LossOutput", "LossSettings", "dapo_loss", "sft_loss"]
