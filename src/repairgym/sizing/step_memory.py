"""Bytes that one process holds at the peak of an optimizer step of `learning/`, from the model's shape alone.

Float32 weights, gradients and Adam's two moments are divided by the number of processes (FSDP2). What a process holds
besides does not fall with that number: the layers that are gathered at the moment, embeddings and head, which are whole
from the forward pass to the end of the backward pass, and the activations of its own micro-batch. The peak is in one of
five phases: the first gathering, the logits, the backward pass of the first layer that is reached, its end, or the
optimizer's update. As of the second micro-batch of a step, gradients are there all along.
"""

from dataclasses import dataclass

from repairgym.config.learning import ComputeConfig
from repairgym.sizing.shapes import ModelShape

_STATE_BYTES = 12
"""Per trained parameter: 4 for the weight, 8 for Adam's moments."""
_NUM_MATRICES = 7
"""Of a layer."""
_SAVED_BYTES = {
    (False, False): (24, 20, 16, 16),
    (False, True): (16, 16, 12, 16),
    (True, False): (20, 12, 22, 8),
    (True, True): (12, 10, 20, 8),
}
"""Of a layer and token, by (16 bits, adapters): per element of the hidden state, of queries, of keys, of the MLP.

Norms and the residual stream are float32 in 16 bits, too; frozen norms do not keep their normalized input.
"""
_NUM_LOGITS = 3
"""Tensors of the size of the logits that the head makes at one time."""


@dataclass(frozen=True)
class Share:
    """The part of a step that one process computes."""

    num_processes: int
    num_tokens: float
    """Of a micro-batch."""
    num_logit_tokens: float
    """Positions whose logits are in memory at one time."""
    lora_rank: int = 0
    """0: all weights are trained."""
    logit_bytes: float | None = None
    """Of such a position; None: of the learner's chunks of the vocabulary."""
    is_bf16: bool = True
    is_checkpointing: bool = True
    has_reference: bool = False
    """A KL term keeps the weights of the start, frozen."""

    @property
    def value_bytes(self) -> int:
        """Bytes of an element of a layer's products."""
        return 2 if self.is_bf16 else 4


def step_parts(shape: ModelShape, share: Share) -> dict[str, float]:
    """Return the bytes of one process at the peak of a step, by name; tensors only."""
    trained = _lora_parameters(shape, share.lora_rank) if share.lora_rank else float(shape.num_parameters)
    frozen = shape.num_parameters if share.lora_rank else 0.0
    always = {
        "weights and moments": (_STATE_BYTES * trained + 4 * frozen) / share.num_processes,
        "gradients": 4 * trained / share.num_processes,
    }
    if share.has_reference:
        always["reference"] = 4.0 * shape.num_parameters / share.num_processes
    before = {"activations of layers": _stored_bytes(shape, share) * shape.num_layers} | _copies(shape, share)
    hidden = 4.0 * share.num_tokens * shape.hidden_size
    logit_bytes = share.logit_bytes or _NUM_LOGITS * 4.0 * min(shape.vocab_size, ComputeConfig().head_chunk_vocab)
    logits = share.num_logit_tokens * logit_bytes
    phases = (
        _first_gather(shape, share),
        # The last hidden states, their norm and their gradient are there four times.
        before | {"logits": logits + 4 * hidden} | _root(shape, share),
        before | {"one layer": _layer_bytes(shape, share)} | _gathered(shape, share) | _root(shape, share),
        _root(shape, share, is_over=True),
        # Of the optimizer: two of the size of the tensor that it updates.
        {"Adam's denominators": 8.0 * _largest(shape, share) / share.num_processes},
    )
    return always | max(phases, key=lambda parts: sum(parts.values()))


def _saved_bytes(shape: ModelShape, share: Share) -> float:
    """Bytes that the forward pass of a layer keeps for its backward pass."""
    hidden, inner, cached, intermediate = _SAVED_BYTES[share.is_bf16, share.lora_rank > 0]
    heads = inner * shape.num_heads + cached * shape.num_kv_heads
    of_adapters = share.value_bytes * _NUM_MATRICES * share.lora_rank
    width = hidden * shape.hidden_size + heads * shape.head_dim + intermediate * shape.intermediate_size + of_adapters
    return share.num_tokens * width


def _stored_bytes(shape: ModelShape, share: Share) -> float:
    """Bytes that each layer keeps: its input when it is computed again, else all that its backward pass needs."""
    return 4.0 * share.num_tokens * shape.hidden_size if share.is_checkpointing else _saved_bytes(shape, share)


def _layer_bytes(shape: ModelShape, share: Share) -> float:
    """Bytes of the layer whose backward pass runs, beyond what is stored: gradients, and what is computed again."""
    gradients = share.num_tokens * (4 * 2 * shape.hidden_size + share.value_bytes * 2 * shape.intermediate_size)
    return gradients + (_saved_bytes(shape, share) if share.is_checkpointing else 0.0)


def _gathered(shape: ModelShape, share: Share) -> dict[str, float]:
    """Whole weights and gradients of layers during the backward pass of one."""
    if share.num_processes == 1:
        return {"gradient of a matrix": 4.0 * _largest(shape, share, is_layer=True)}
    # This layer and the next one; with all weights trained this one's gradient, and the last one's in the exchange.
    gradients = 0 if share.lora_rank else share.value_bytes + 4
    return {"gathered layers": float(shape.layer_parameters * (2 * share.value_bytes + gradients))}


def _first_gather(shape: ModelShape, share: Share) -> dict[str, float]:
    """Bytes at the start of a forward pass: embeddings and head, and their buffer, which the first layer frees."""
    if share.num_processes == 1:
        return {}
    whole = 8.0 * shape.head_parameters * (1 if shape.is_tied else 2)
    return {"embeddings and head": whole, "gathered layers": 2.0 * share.value_bytes * shape.layer_parameters}


def _root(shape: ModelShape, share: Share, *, is_over: bool = False) -> dict[str, float]:
    """Embeddings and head, with the gradients that they have before and after (``is_over``) that of the layers."""
    whole = shape.head_parameters * (1 if shape.is_tied else 2)
    gradient = 0 if share.lora_rank else (whole if is_over else shape.head_parameters)
    if share.num_processes == 1:
        # A gradient is added to the one of earlier micro-batches.
        return {"embeddings and head": 4.0 * min(gradient, shape.head_parameters)}
    exchange = gradient * (1 + 1 / share.num_processes) if is_over else 0.0
    return {"embeddings and head": 4.0 * (whole + gradient + exchange)}


def _copies(shape: ModelShape, share: Share) -> dict[str, float]:
    """16-bit copies of the weights of layers: a single process has them until its backward pass."""
    is_copied = share.is_bf16 and share.num_processes == 1
    return {"16-bit weights": 2.0 * shape.num_layers * shape.layer_parameters} if is_copied else {}


def _largest(shape: ModelShape, share: Share, *, is_layer: bool = False) -> int:
    """Elements of the largest trained matrix, without embeddings if ``is_layer``; adapters are small."""
    matrix = shape.hidden_size * max(shape.intermediate_size, shape.num_heads * shape.head_dim)
    if share.lora_rank:
        return 0
    return matrix if is_layer else max(matrix, shape.head_parameters)


def _lora_parameters(shape: ModelShape, rank: int) -> float:
    """Parameters of adapters on all matrices of each layer."""
    inner = shape.head_dim * shape.num_heads, shape.head_dim * shape.num_kv_heads
    sides = [shape.hidden_size + inner[0]] * 2 + [shape.hidden_size + inner[1]] * 2
    sides += [shape.hidden_size + shape.intermediate_size] * 3
    return float(shape.num_layers * rank * sum(sides))
