"""Dumps of trainers that hold tokens: slime's rollouts (``--save-debug-rollout-data``) and prime-rl's traces.

slime's ``.pt`` file is ``{"rollout_id": ..., "samples": [{"prompt", "tokens", "response", "response_length",
"loss_mask", "rollout_log_probs", ...}]}``. prime-rl writes a trace of verifiers per line of ``train_rollouts.jsonl``:
``nodes`` are messages with ``parent``, ``sampled``, ``token_ids``, ``mask`` and the ``logprobs`` of the sampled tokens.
Guarantees: a file never runs code; the tokens are taken as they are, and only where the tokenizer at hand gives the
file's own text for them.
"""

from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path

from repairgym.bridges.trajectories.base import Document, DumpedTokens, ExchangeTrajectory, FormatError, Step, full_text
from repairgym.bridges.trajectories.contents import text_of
from repairgym.errors import ConfigError, InputError, install_hint
from repairgym.inference.chat_template import Message
from repairgym.inference.renderer import ChatRenderer
from repairgym.ledger import UNKNOWN_VERSION, LedgerBuilder
from repairgym.records import Turn


def is_slime(document: Document) -> bool:
    """Return True for a sample of slime."""
    return {"tokens", "response_length", "prompt", "response"} <= set(document)


def is_prime_rl(document: Document) -> bool:
    """Return True for a trace of verifiers, as prime-rl stores it."""
    return {"nodes", "task", "rewards"} <= set(document)


def slime_samples(path: Path) -> Iterator[tuple[str, str, Document]]:
    """Yield (place, name, sample) of a ``.pt`` file; `InputError` for one that needs code to be read."""
    try:
        import torch
    except ImportError:
        raise ConfigError(f"{path} needs torch: {install_hint('train')}") from None
    try:
        dump = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises errors of several libraries
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{path} cannot be read without running code of its own: {reason}") from None
    samples = dump.get("samples") if isinstance(dump, Mapping) else None
    if not isinstance(samples, list):
        raise InputError(f"{path} holds no samples of slime; expected a file of --save-debug-rollout-data")
    for number, sample in enumerate(samples, 1):
        yield f"{path}, sample {number}", f"{path.stem}-{number}", sample if isinstance(sample, Mapping) else {}


def read_slime(document: Document, name: str) -> ExchangeTrajectory:
    """Read a sample; its response is one text, whatever turns it has."""
    tokens, num_response = list(document["tokens"]), int(document["response_length"])
    num_prompt = len(tokens) - num_response
    mask, log_probs = document.get("loss_mask"), document.get("rollout_log_probs")
    mask = [1] * num_response if mask is None else list(mask)
    log_probs = [0.0] * num_response if log_probs is None else list(log_probs)
    if num_prompt < 0 or {len(mask), len(log_probs)} != {num_response}:
        raise FormatError("loss_mask, rollout_log_probs and tokens do not fit response_length")
    prompt = document["prompt"]
    metadata = document.get("metadata") or {}
    return ExchangeTrajectory(
        id=str(name if document.get("index") is None else document["index"]),
        instance_id=str(metadata.get("instance_id") or name),
        opening=(Message("user", prompt),) if isinstance(prompt, str) else tuple(map(_message, prompt)),
        steps=(Step(text=str(document["response"])),),
        exit_status=str(document.get("status") or ""),
        patch="",
        agent="slime",
        dump=DumpedTokens(
            token_ids=tuple(tokens),
            is_sampled=(False,) * num_prompt + tuple(map(bool, mask)),
            log_probs=(0.0,) * num_prompt + tuple(map(float, log_probs)),
        ),
    )


def read_prime_rl(document: Document, name: str) -> ExchangeTrajectory:
    """Read the branch of a trace that ends with its last message."""
    path = _last_branch(document["nodes"])
    first = next((number for number, node in enumerate(path) if node.get("sampled")), None)
    if first is None:
        raise FormatError("no message was sampled")
    steps: list[Step] = []
    for node in path[first:]:
        if node.get("sampled"):
            steps.append(Step(text=_text(node["message"])))
        else:
            steps[-1] = steps[-1].model_copy(update={"observation": _joined(steps[-1], _text(node["message"]))})
    data = document["task"].get("data") or document["task"]
    return ExchangeTrajectory(
        id=str(document.get("id") or name),
        instance_id=str(data.get("instance_id") or data.get("id") or data.get("name") or name),
        opening=tuple(_message(node["message"]) for node in path[:first]),
        steps=tuple(steps),
        exit_status=str(document.get("stop_condition") or ""),
        patch="",
        agent="prime-rl",
        dump=_dump_of(path),
    )


def _last_branch(nodes: list[Document]) -> list[Document]:
    path: list[Document] = []
    index: int | None = len(nodes) - 1 if nodes else None
    while index is not None:
        path.insert(0, nodes[index])
        parent = nodes[index].get("parent")
        if parent is not None and not 0 <= parent < index:
            raise FormatError(f"message {index} has the parent {parent}, expected an earlier one")
        index = parent
    return path


def _dump_of(path: list[Document]) -> DumpedTokens | None:
    """Return the tokens of a branch; None where a message has none (evaluations store text only)."""
    ids: list[int] = []
    is_sampled: list[bool] = []
    log_probs: list[float] = []
    for node in path:
        own, mask = node.get("token_ids") or [], node.get("mask") or []
        given = iter(node.get("logprobs") or [])
        if len(own) != len(mask) or (node.get("sampled") and not any(mask)):
            return None
        ids += own
        is_sampled += map(bool, mask)
        log_probs += (float(next(given, 0.0)) if each else 0.0 for each in mask)
    return DumpedTokens(token_ids=tuple(ids), is_sampled=tuple(is_sampled), log_probs=tuple(log_probs))


def _joined(step: Step, text: str) -> str:
    return f"{step.observation}\n{text}" if step.observation else text


def _message(message: Document) -> Message:
    return Message("system" if message.get("role") == "system" else "user", _text(message))


def _text(message: Document) -> str:
    calls = "".join(f"\n{call.get('name')} {call.get('arguments')}" for call in message.get("tool_calls") or ())
    return (text_of(message.get("content")) + calls).strip("\n")


# --- tokens of a dump ----------------------------------------------------------------------------------------------


def keep_dumped_tokens(
    imported: ExchangeTrajectory, renderer: ChatRenderer, ledger: LedgerBuilder
) -> list[Turn] | None:
    """Append the file's own tokens to ``ledger`` and return their turns; None where they are not of this tokenizer.

    A turn is an unbroken run of sampled tokens. Nobody knows their policy version here: imitation can learn them.
    """
    dump = imported.dump
    if dump is None or not _is_readable(imported, dump, renderer):
        return None
    turns: list[Turn] = []
    for is_sampled, group in groupby(range(len(dump.token_ids)), key=dump.is_sampled.__getitem__):
        places = list(group)
        ids = [dump.token_ids[place] for place in places]
        if is_sampled:
            log_probs = [dump.log_probs[place] for place in places]
            span = ledger.append_action(ids, log_probs, UNKNOWN_VERSION)
            turns.append(Turn(action=renderer.decode(ids), tool=None, observation="", action_span=span))
        else:
            ledger.append_context(ids)
            if turns:
                turns[-1] = turns[-1].model_copy(update={"observation": renderer.decode(ids)})
    return turns or None


def _is_readable(imported: ExchangeTrajectory, dump: DumpedTokens, renderer: ChatRenderer) -> bool:
    """Return True where the tokenizer gives the file's own text for its tokens."""
    if max(dump.token_ids, default=0) >= renderer.vocab_size or min(dump.token_ids, default=0) < 0:
        return False
    sampled = [token for token, is_sampled in zip(dump.token_ids, dump.is_sampled, strict=True) if is_sampled]
    text = renderer.decode(list(dump.token_ids))
    answers = [imported.steps[0].text] if len(imported.steps) == 1 else [full_text(step) for step in imported.steps]
    # Calls are written in another form than the model's own, so their tokens are compared by the text before them.
    return bool(sampled) and all(answer.split("\n", 1)[0].strip() in text for answer in answers)
