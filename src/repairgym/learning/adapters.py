"""LoRA adapters in a model, by peft (extra ``lora``): put in, saved apart, and merged into whole weights.

Reads a causal LM; changes it in place. Invariants: with adapters only they are trained; a merged model has the names,
shapes and answers of the adapted one without needing peft.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedModel

from repairgym.config.learning import LoraConfig
from repairgym.errors import ConfigError, install_hint

ADAPTER_NAME = "default"


def add_lora(model: PreTrainedModel, config: LoraConfig) -> None:
    """Put fresh adapters into ``model`` and freeze everything else.

    Raises:
        ConfigError: peft is not installed, or no linear layer has a name that ``config.targets`` ends.
    """
    try:
        import peft
    except ImportError as error:
        raise ConfigError(f"trained.type='lora' needs peft; install it: {install_hint('lora')}") from error
    settings = peft.LoraConfig(
        r=config.rank,
        lora_alpha=config.alpha,
        target_modules=list(config.targets) or "all-linear",
        lora_dropout=0.0,
        task_type="CAUSAL_LM",
    )
    try:
        # Drawn from a seed of its own, so that a resumed run begins with the same adapters.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model.add_adapter(settings, ADAPTER_NAME)
    except ValueError as error:
        raise ConfigError(f"trained.targets={list(config.targets)}: {error}") from error


def has_adapters(model: PreTrainedModel) -> bool:
    """True after `add_lora`."""
    return bool(getattr(model, "_hf_peft_config_loaded", False))


def merged_state(model: PreTrainedModel, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """``state`` of an adapted model (whole tensors) as that of a plain one: W + B A * alpha / rank.

    Args:
        model: Says which layers are adapted and how they are scaled.
        state: `state_dict` of ``model``.
    """
    merged = {name: tensor for name, tensor in state.items() if ".lora_" not in name and ".base_layer." not in name}
    for name, module in model.named_modules():
        if not hasattr(module, "lora_A"):
            continue
        layer: Any = module
        low = state[f"{name}.lora_A.{ADAPTER_NAME}.weight"].float()
        high = state[f"{name}.lora_B.{ADAPTER_NAME}.weight"].float()
        weight = state[f"{name}.base_layer.weight"]
        merged[f"{name}.weight"] = (weight.float() + layer.scaling[ADAPTER_NAME] * (high @ low)).to(weight.dtype)
        if f"{name}.base_layer.bias" in state:
            merged[f"{name}.bias"] = state[f"{name}.base_layer.bias"]
    return merged


def adapter_state(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The adapters' own tensors of ``state``."""
    return {name: tensor for name, tensor in state.items() if ".lora_" in name}
