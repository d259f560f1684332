"""LoRA adapters by peft (extra ``lora``): add to a model, save separately, merge into whole weights.

Reads a causal LM; changes it in place. Guarantees: with adapters, only adapters are trained; a merged model has the
names, shapes and outputs of the adapted model and does not need peft.
"""

from typing import Any

import torch
from transformers import PreTrainedModel

from repairgym.config.learning import LoraConfig
from repairgym.errors import ConfigError, install_hint

ADAPTER_NAME = "default"


def add_lora(model: PreTrainedModel, config: LoraConfig) -> None:
    """Add new adapters to ``model`` and freeze everything else.

    Raises:
        ConfigError: peft is not installed, or no linear layer has a name with an ending of ``config.targets``.
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
        # A fixed seed, so that a resumed run begins with the same adapters.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model.add_adapter(settings, ADAPTER_NAME)
    except ValueError as error:
        raise ConfigError(f"trained.targets={list(config.targets)}: {error}") from error


def has_adapters(model: PreTrainedModel) -> bool:
    """True after `add_lora`."""
    return bool(getattr(model, "_hf_peft_config_loaded", False))


def merged_state(model: PreTrainedModel, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Merge ``state``, the whole `state_dict` of an adapted ``model``, into a plain model's: W + B A * alpha / rank."""
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
    """Return the adapters' own tensors of ``state``."""
    return {name: tensor for name, tensor in state.items() if ".lora_" in name}
