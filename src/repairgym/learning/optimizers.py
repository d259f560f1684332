"""Optimizers with gradient clipping and a learning-rate schedule behind one `step`.

Reads a model's gradients; changes its parameters. Guarantees: the learning rate is a function of the step number alone;
a step with a gradient that is not finite changes only the step number and is counted.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from repairgym.config.learning import OptimizerConfig
from repairgym.learning.distributed.fsdp import whole

_STEP = "step"
"""Key of torch's optimizers for the number of updates of a parameter."""


class Optimizer:
    """AdamW, or Muon for hidden matrices and AdamW for the rest."""

    def __init__(
        self,
        model: PreTrainedModel,
        config: OptimizerConfig,
        num_steps: int | None = None,
        extra: Sequence[tuple[list[torch.nn.Parameter], float]] = (),
    ) -> None:
        """Assign the parameters with ``requires_grad`` to AdamW or Muon.

        AdamW without decay trains ``extra``, parameters outside the model with their peak learning rates. ``num_steps``
        is the length of the schedule.

        Raises:
            ValueError: a decaying schedule without ``num_steps``.
        """
        if config.schedule != "constant" and not num_steps:
            raise ValueError(f"schedule {config.schedule!r} needs the number of steps, got {num_steps}")
        self.num_done = 0
        self.num_skipped = 0
        self._config = config
        self._num_steps = num_steps
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._parts = _build(model, config)
        for parameters, learning_rate in extra:
            part = torch.optim.AdamW(parameters, lr=learning_rate, betas=config.betas, eps=config.eps, weight_decay=0.0)
            self._parts.append((part, learning_rate))
            self._parameters += parameters

    def step(self) -> dict[str, float]:
        """Clip, update, clear the gradients; return metrics, the gradient's norm before clipping among them."""
        factor = schedule_factor(self._config, self.num_done, self._num_steps)
        norm = whole(torch.nn.utils.clip_grad_norm_(self._parameters, self._config.max_grad_norm))
        self.num_done += 1
        if bool(torch.isfinite(norm)):
            for part, peak in self._parts:
                for group in part.param_groups:
                    group["lr"] = peak * factor
                part.step()
        else:
            self.num_skipped += 1
        self.clear()
        return {
            "optim/grad_norm": float(norm),
            "optim/learning_rate": self._config.learning_rate * factor,
            "optim/num_skipped": float(self.num_skipped),
        }

    def reset(self) -> None:
        """Forget the moments of all parameters; the schedule continues."""
        for part, _ in self._parts:
            part.state.clear()

    def shorten(self, num_steps: int) -> None:
        """Let the schedule end after ``num_steps`` steps in all."""
        self._num_steps = num_steps

    def clear(self) -> None:
        """Clear the gradients."""
        for parameter in self._parameters:
            parameter.grad = None

    def summary(self) -> dict[str, Any]:
        """Return the counts of a resumed run and the shape of the optimizer, without tensors."""
        return {"num_done": self.num_done, "num_skipped": self.num_skipped, "num_updates": self._num_updates()}

    def state_tensors(self) -> dict[str, torch.Tensor]:
        """Return the moments by name, each process its shards; empty before the first step.

        The updates of each parameter are in `summary`: a tensor each would cost more to save than what they hold.
        """
        return {
            f"{part_at}.{at}.{key}": value
            for part_at, (part, _) in enumerate(self._parts)
            for at, parameter in enumerate(_parameters(part))
            for key, value in part.state.get(parameter, {}).items()
            if key != _STEP
        }

    def is_like(self, summary: dict[str, Any]) -> bool:
        """True if `summary` is of an optimizer with the same parts over equally many parameters."""
        lengths = [[len(group) for group in part] for part in summary.get("num_updates", ())]
        return lengths == [[len(group) for group in part] for part in self._num_updates()]

    def begin_restore(self, summary: dict[str, Any], shapes: Mapping[str, Sequence[int]]) -> dict[str, torch.Tensor]:
        """Take the counts of ``summary`` and make room for the named states; the caller fills the returned tensors."""
        self.num_done, self.num_skipped = summary["num_done"], summary["num_skipped"]
        for part, _ in self._parts:
            part.state.clear()
        for name, shape in shapes.items():
            part_at, at, key = name.split(".", 2)
            part = self._parts[int(part_at)][0]
            parameter = _parameters(part)[int(at)]
            is_moment = tuple(shape) == tuple(parameter.shape)
            part.state[parameter][key] = (
                torch.zeros_like(parameter.detach()) if is_moment else torch.zeros(tuple(shape))
            )
        for (part, _), groups in zip(self._parts, summary["num_updates"], strict=True):
            numbers = (number for group in groups for number in group)
            for parameter, number in zip(_parameters(part), numbers, strict=True):
                if number:
                    part.state[parameter][_STEP] = torch.tensor(float(number))
        return self.state_tensors()

    def _num_updates(self) -> list[list[list[int]]]:
        """Of each parameter, by part and group; 0 where the optimizer does not count."""
        return [
            [
                [int(part.state.get(parameter, {}).get(_STEP, 0)) for parameter in group["params"]]
                for group in part.param_groups
            ]
            for part, _ in self._parts
        ]


def _parameters(part: torch.optim.Optimizer) -> list[torch.nn.Parameter]:
    return [parameter for group in part.param_groups for parameter in group["params"]]


def schedule_factor(config: OptimizerConfig, step: int, num_steps: int | None) -> float:
    """Share of the peak learning rate at ``step`` (from 0): linear warm-up, then decay to the final ratio."""
    if step < config.num_warmup_steps:
        return (step + 1) / config.num_warmup_steps
    if config.schedule == "constant" or num_steps is None:
        return 1.0
    progress = (step - config.num_warmup_steps) / max(1, num_steps - config.num_warmup_steps)
    progress = min(1.0, max(0.0, progress))
    left = 0.5 * (1.0 + math.cos(math.pi * progress)) if config.schedule == "cosine" else 1.0 - progress
    return config.final_lr_ratio + (1.0 - config.final_lr_ratio) * left


def _build(model: PreTrainedModel, config: OptimizerConfig) -> list[tuple[torch.optim.Optimizer, float]]:
    ends = (model.get_input_embeddings(), model.get_output_embeddings())
    embeddings = {id(parameter) for module in ends if module is not None for parameter in module.parameters()}
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    hidden = [parameter for parameter in trained if parameter.ndim == 2 and id(parameter) not in embeddings]
    if config.type == "adamw":
        hidden = []
    taken = {id(parameter) for parameter in hidden}
    rest = [parameter for parameter in trained if id(parameter) not in taken]
    groups = [
        {"params": [parameter for parameter in rest if parameter.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [parameter for parameter in rest if parameter.ndim < 2], "weight_decay": 0.0},
    ]
    # One tensor after the other: all at once would hold another 4 bytes per parameter.
    adamw = torch.optim.AdamW(groups, lr=config.learning_rate, betas=config.betas, eps=config.eps, foreach=False)
    parts: list[tuple[torch.optim.Optimizer, float]] = [(adamw, config.learning_rate)]
    if hidden:
        muon = torch.optim.Muon(
            hidden, lr=config.muon_learning_rate, momentum=config.muon_momentum, weight_decay=config.weight_decay
        )
        parts.append((muon, config.muon_learning_rate))
    return parts
