"""Positions of a model, their stretch by YaRN, and the preflight of a long context.

Reads ``config.json`` of a model folder; makes another one, or an error that names what does not fit. Guarantees:
nothing is loaded; the learner, the embedded engine, vLLM and verl are asked for what each of them accepts, which is not
the same. Stretching counts from the positions that the model was first trained with, so that it can be repeated.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from repairgym.errors import ConfigError, ModelFolderError
from repairgym.sizing.attention import limited_attention

Engine = Literal["learner", "embedded", "vllm", "verl"]
_MAKERS_POSITIONS = {("qwen3", 40_960): 32_768, ("qwen3_moe", 40_960): 32_768}
"""(type, positions of config.json) -> positions that the makers' pages stretch from (Qwen3: 8,192 are for answers)."""
_GIB = 1 << 30
_ADVICE = {
    "learner": "start more processes, raise compute.context_parallel, or set compute.is_checkpointing=true, "
    "compute.is_offloaded=true or trained.type=lora",
    "embedded": "lower rollout.engine.num_slots or the context",
    "vllm": "split the weights over more GPUs (--tensor-parallel-size, verl.rollout_tensor_parallel), give it a larger "
    "share (--gpu-memory-utilization, verl.gpu_memory_share), set verl.is_offloaded=true, or lower the context",
    "verl": "take more nodes or GPUs (verl.num_nodes, verl.gpus_per_node), raise verl.sequence_parallel, or set "
    "rl.algorithm.compute.is_checkpointing=true or rl.algorithm.trained.type=lora",
}
"""Engine -> what makes room."""
_OWN_STRETCH = ("llama3", "longrope", "su")
"""Types whose positions in ``config.json`` include the stretch, for vLLM, too."""

_STRETCHABLE = ("default", "yarn")
_BY_CALL = ("longrope", "su")
"""Types whose rotations transformers takes from the longest sequence of a call: short factors up to the original
positions, long ones beyond. A call of our learner or embedded engine has several sequences, which would decide on each
other's, and cached keys keep what they had."""


@dataclass(frozen=True)
class Positions:
    """Rotary positions as a ``config.json`` describes them."""

    name: str
    """Of the model, for messages."""
    positions: int
    original: int
    rope_type: str
    factor: float
    num_heads: int
    num_kv_heads: int
    limited_attention: str = ""
    """Fields by which some layers see less than the whole context."""

    @classmethod
    def of(cls, config: dict[str, Any], name: str) -> Self:
        """Read the fields of a ``config.json``; `ModelFolderError` if they describe no causal LM."""
        fields = config.get("text_config") or config
        rope = _rope_of(fields)
        try:
            positions, num_heads = int(fields["max_position_embeddings"]), int(fields["num_attention_heads"])
        except KeyError as error:
            raise ModelFolderError(f"{name} does not describe a causal LM: its config.json has no {error}") from None
        makers = _MAKERS_POSITIONS.get((str(fields.get("model_type")), positions), positions)
        return cls(
            name=name,
            positions=positions,
            original=int(_original_of(fields, rope) or makers),
            rope_type=_type_of(rope),
            factor=float(rope.get("factor") or 1.0),
            num_heads=num_heads,
            num_kv_heads=int(fields.get("num_key_value_heads") or num_heads),
            limited_attention=limited_attention(config),
        )

    def accepted_by(self, engine: Engine) -> int:
        """Return the longest context that ``engine`` accepts.

        vLLM computes it from the stretch (original times factor for YaRN, positions times factor for ``linear`` and
        ``dynamic``); verl 0.9.1, whatever it samples with, compares with ``max_position_embeddings``, and so do we.
        With transformers 5, vLLM rejects YaRN beyond these, too. Our engines compute LongRoPE (Phi) up to the original
        positions (`exact_positions`).
        """
        if engine in ("learner", "embedded") and self.rope_type in _BY_CALL:
            return min(self.original, self.positions)
        longest = self.positions
        if engine in ("vllm", "verl") and self.rope_type not in (*_OWN_STRETCH, "default"):
            longest = round((self.original if self.rope_type == "yarn" else self.positions) * self.factor)
        return min(longest, self.positions) if engine == "verl" or self.rope_type == "yarn" else longest


@dataclass(frozen=True)
class Demand:
    """A context and the GPUs (or processes) that are to hold it."""

    engine: Engine
    context_tokens: int
    num_gpus: int = 1
    """0: those of a server, which are not known."""
    context_parallel: int = 1
    """Parts of one sequence in training; each is on a GPU or process of its own."""
    tensor_parallel: int = 1
    """Parts of the weights in generation."""
    step_bytes: float | None = None
    """Estimate of what one GPU or process holds at the peak of a step, or while it samples; None: not estimated."""
    room_bytes: float | None = None
    """Memory of one GPU that there is for it; None: not known, so nothing is compared with it."""


def check_demand(positions: Positions, demand: Demand) -> str:
    """Return a line that names model, context, positions, machines and memory.

    Raises:
        ConfigError: the model cannot have such a context on such machines; the message says what to do.
    """
    longest = positions.accepted_by(demand.engine)
    memory = f", about {demand.step_bytes / _GIB:.3g} GiB each" if demand.step_bytes is not None else ""
    place = f"on {demand.num_gpus} GPUs or processes (context over {demand.context_parallel}, weights over "
    place += f"{demand.tensor_parallel}{memory})"
    if not demand.num_gpus:
        place = f"on servers, whose GPUs are not known here{memory.replace('each', 'together')}"
    told = f"{positions.name}: a context of {demand.context_tokens:,} tokens for {demand.engine} {place}"
    if positions.limited_attention and demand.engine in ("learner", "embedded"):
        raise ConfigError(
            f"{told}: its config.json has {positions.limited_attention}, so some layers see less than the whole "
            "context; expected full attention in every layer: use another model, or train this one under verl with "
            "vLLM (repairgym train verl), which compute windows"
        )
    if demand.context_tokens > longest:
        factor = least_factor(demand.context_tokens / positions.original)
        is_stretchable = positions.rope_type in _STRETCHABLE
        remedy = f"stretch it: repairgym models stretch MODEL OUT --factor {factor:g}, or " if is_stretchable else ""
        raise ConfigError(
            f"{told}: the model has {longest:,} positions there ({positions.rope_type}, {positions.original:,} "
            f"originally); {remedy}lower the context (rollout.pipeline.max_len_tokens, context_tokens)"
        )
    for name, parts in (("context", demand.context_parallel), ("weights", demand.tensor_parallel)):
        if demand.num_gpus % parts:
            raise ConfigError(f"{told}: {parts} parts of the {name} need a multiple of {parts} GPUs or processes")
    heads = positions.num_heads, positions.num_kv_heads
    if not are_weights_divisible(*heads, demand.tensor_parallel):
        raise ConfigError(
            f"{told}: {heads[0]} attention heads and {heads[1]} key-value heads cannot be divided over "
            f"{demand.tensor_parallel} GPUs"
        )
    if not is_context_divisible(*heads, demand.context_parallel, demand.engine):
        raise ConfigError(
            f"{told}: each part of the context takes an equal share of {heads[0]} attention heads and {heads[1]} "
            "key-value heads"
        )
    if demand.step_bytes and demand.room_bytes is not None and demand.step_bytes > demand.room_bytes:
        room = max(0.0, demand.room_bytes) / _GIB
        raise ConfigError(f"{told}: a GPU has {room:.3g} GiB for it; {_ADVICE[demand.engine]}")
    return f"{told}: {longest:,} positions ({positions.rope_type}, {positions.original:,} originally)"


def are_weights_divisible(num_heads: int, num_kv_heads: int, parts: int) -> bool:
    """Return True where vLLM can split the weights over ``parts`` GPUs.

    It divides key-value heads evenly, or repeats each as often (its attention layers assert it).
    """
    return num_heads % parts == 0 and (num_kv_heads % parts == 0 or parts % num_kv_heads == 0)


def is_context_divisible(num_heads: int, num_kv_heads: int, parts: int, engine: Engine = "learner") -> bool:
    """Return True where each of ``parts`` processes can take an equal share of the heads (Ulysses).

    verl repeats key-value heads where there are more parts than heads; our learner does not.
    """
    is_repeated = engine == "verl" and parts % num_kv_heads == 0
    return num_heads % parts == 0 and (num_kv_heads % parts == 0 or is_repeated)


def stretched(config: dict[str, Any], factor: float, name: str, original: int | None = None) -> dict[str, Any]:
    """Return a ``config.json`` with YaRN by ``factor`` of the ``original`` positions (not set: those of the maker).

    Raises:
        ConfigError: the model has no plain rotary positions, or is stretched as far already.
    """
    now = Positions.of(config, name)
    if original is not None and now.rope_type == "yarn" and original != now.original:
        raise ConfigError(f"{name} was stretched from {now.original} positions, not from {original}; leave it out")
    start = original or now.original
    rope = _rope_of(config)
    theta = rope.get("rope_theta", config.get("rope_theta"))
    if now.rope_type not in _STRETCHABLE or theta is None:
        raise ConfigError(
            f"{name} has rotary positions of type {now.rope_type!r}, YaRN needs 'default' or 'yarn'; use it as it is "
            "(factor 1), or another model"
        )
    if start * factor <= now.positions:
        raise ConfigError(
            f"{name} has {now.positions} positions already; factor={factor:g} of {start} would leave {start * factor:g}"
        )
    yarn = {key: value for key, value in rope.items() if key not in ("type", "attention_factor")}
    yarn |= {"rope_type": "yarn", "factor": float(factor), "original_max_position_embeddings": start}
    if "rope_parameters" in config:
        return config | {"rope_parameters": yarn, "max_position_embeddings": round(start * factor)}
    # As transformers 4 wrote it; version 5 reads both.
    return config | {"rope_scaling": yarn, "max_position_embeddings": round(start * factor)}


def read_positions(path: Path, factor: float = 1.0) -> Positions:
    """Read the positions of a model folder as they are after a stretch to ``factor`` (1: none, nor where it has it)."""
    config = read_config(path)
    now = Positions.of(config, str(path))
    return now if factor in (1.0, now.factor) else Positions.of(stretched(config, factor, str(path)), str(path))


def read_config(path: Path) -> dict[str, Any]:
    """Read ``config.json``, given itself or its folder; `ModelFolderError` without one."""
    file = path / "config.json" if path.is_dir() else path
    try:
        config: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelFolderError(f"{path} has no config.json; expected a model folder in Hugging Face format") from None
    except (OSError, ValueError) as error:
        raise ModelFolderError(f"{file} cannot be read: {error}") from error
    return config


def exact_positions(config: Mapping[str, Any]) -> int | None:
    """Return the longest sequence that the learner and the embedded engine compute as if it were alone; None: any.

    ``config`` is a ``config.json``, or what transformers makes of it.
    """
    fields = config.get("text_config") or config
    rope = _rope_of(fields)
    kinds = [rope, *(part for part in rope.values() if isinstance(part, dict))]  # of all layers, or of each kind
    limits = [_original_of(fields, kind) for kind in kinds if _type_of(kind) in _BY_CALL]
    known = [int(limit) for limit in (fields.get("max_position_embeddings"), *limits) if limit]
    return min(known, default=None)


def _original_of(fields: Mapping[str, Any], rope: Mapping[str, Any]) -> Any:
    return rope.get("original_max_position_embeddings") or fields.get("original_max_position_embeddings")


def _type_of(rope: Mapping[str, Any]) -> str:
    return str(rope.get("rope_type") or rope.get("type") or "default")


def _rope_of(fields: Mapping[str, Any]) -> dict[str, Any]:
    return dict(fields.get("rope_parameters") or fields.get("rope_scaling") or {})


def least_factor(factor: float) -> float:
    """Return the next half above ``factor``."""
    return math.ceil(factor * 2) / 2
