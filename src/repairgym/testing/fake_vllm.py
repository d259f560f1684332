"""A server with vLLM's routes over a tiny model, and with every flaw that the client has to detect.

Reads a model folder; answers `completions`, `generate` and the routes of weight updates over real HTTP. Guarantees:
without a flaw it samples exactly from the model's distribution, token by token, with its current weights; it shares
only the protocol with the client. For tests: every token is a forward pass over the whole sequence.
"""

import asyncio
import copy
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from repairgym.errors import ConfigError
from repairgym.inference.grammar import GrammarCompiler, GrammarMask, json_grammar
from repairgym.inference.loading import load_model, load_tokenizer
from repairgym.inference.renderer import ChatRenderer
from repairgym.testing.servers import HttpFake, HttpRequest, send

_BLOCK_TOKENS = 16
"""The prefix cache holds whole blocks, as vLLM's does."""
_KEPT_WHEN_TRUNCATING = 8


class Flaw(StrEnum):
    """A flaw of the server."""

    OLD = "old"
    """A version without token ids."""
    NO_UPDATES = "no-updates"
    """Started without the routes of weight updates."""
    TEXT_ONLY = "text-only"
    OTHER_TOKENIZER = "other-tokenizer"
    TRUNCATES = "truncates"
    """Reads the end of a long prompt only."""
    TRUNCATES_IDS = "truncates-ids"
    """The same for token ids."""
    CAPS_REPLIES = "caps-replies"
    OWN_STOP = "own-stop"
    """Ends replies at its own stop token."""
    GREEDY = "greedy"
    """Takes the likeliest token whatever the request says."""
    TOP_K = "top-k"
    """Draws from the eight likeliest tokens."""
    STALE_HEAD = "stale-head"
    """New weights do not change the output head, as in vLLM's CPU build with tied embeddings."""
    IGNORES_WEIGHTS = "ignores-weights"
    """Reports new weights as loaded and drops them."""
    CANNOT_LOAD = "cannot-load"
    DEAF_TO_PAUSE = "deaf-to-pause"
    """Pauses, but answers only after it resumes."""
    CLOSES = "closes"
    """Closes every second connection instead of answering, like an idle one."""
    BREAKS_STREAMS = "breaks-streams"
    """Closes the connection behind the first token of a stream."""


class FakeVllm(HttpFake):
    """One server over one model."""

    def __init__(
        self, folder: Path, flaws: Iterable[Flaw] = (), *, name: str = "tiny", max_len_tokens: int = 256
    ) -> None:
        """Serve the model of ``folder`` as ``name``."""
        self._name = name
        self._models: dict[str, Any] = {name: load_model(folder)}
        """By the names that requests give: the model, and copies of it with an adapter."""
        self._tokenizer = load_tokenizer(folder)
        self._flaws = frozenset(flaws)
        self._max_len_tokens = max_len_tokens
        self._is_open, self._is_resumed, self._is_idle = asyncio.Event(), asyncio.Event(), asyncio.Event()
        for event in (self._is_open, self._is_resumed, self._is_idle):
            event.set()
        self._num_running = 0
        self._blocks: set[tuple[int, ...]] = set()
        self._num_requests = 0
        self.version = "default"
        """Value that `update_weight_version` set."""
        self.on_token: Callable[[int], Awaitable[None]] = _nothing
        """Awaited with the number of tokens of a reply after each of them."""
        self.is_paused = asyncio.Event()
        """Set from an order to pause until an order to resume."""
        self.num_prompt_tokens = 0
        self.num_cached_tokens = 0
        """Prompt tokens that were in the prefix cache."""
        self.streamed: list[Mapping[str, Any]] = []
        """Requests of streams in order of arrival."""
        self.log: list[str] = []
        """Orders in order of arrival."""

    @property
    def num_running(self) -> int:
        """Requests that are being sampled."""
        return self._num_running

    def state(self, name: str = "") -> dict[str, torch.Tensor]:
        """Return the current weights of the model, or of the adapter ``name`` merged into it."""
        return dict(self._models[name or self._name].state_dict())

    async def answer(self, request: HttpRequest, writer: asyncio.StreamWriter) -> bool:
        """Answer as vLLM does."""
        self._num_requests += 1
        if Flaw.CLOSES in self._flaws and self._num_requests % 2 == 0:
            return False
        if request.path in ("/v1/completions", "/inference/v1/generate") and self._asked(request) not in self._models:
            error = {"message": f"The model `{self._asked(request)}` does not exist.", "type": "NotFoundError"}
            return await send(writer, 404, json.dumps({"error": error}).encode())
        if request.path == "/v1/completions" and (request.body or {}).get("stream"):
            return await self._stream(request.body or {}, writer)
        status, reply = await self._route(request)
        return await send(writer, status, json.dumps(reply).encode())

    def _asked(self, request: HttpRequest) -> str:
        return str((request.body or {}).get("model") or self._name)

    async def _route(self, request: HttpRequest) -> tuple[int, Any]:
        orders = {
            "/pause": self._pause,
            "/resume": self._resume,
            "/collective_rpc": self._reload,
            "/v1/load_lora_adapter": self._load_adapter,
            "/reset_prefix_cache": self._reset,
            "/update_weight_version": self._set_version,
        }
        looks: dict[str, Any] = {
            "/version": {"version": "0.9.2" if Flaw.OLD in self._flaws else "0.32.0"},
            "/v1/models": {"data": [{"id": name, "max_model_len": self._max_len_tokens} for name in self._models]},
            "/health": {},
        }
        sampling = {"/v1/completions": self._complete, "/inference/v1/generate": self._generate}
        if Flaw.NO_UPDATES in self._flaws:
            orders, sampling = {}, {"/v1/completions": self._complete}
        else:
            looks["/weight_info"] = {"weight_version": self.version}
            looks["/is_paused"] = {"is_paused": self.is_paused.is_set()}
        if request.method == "GET":
            known = request.path in looks
            return (200 if known else 405 if request.path in (*orders, *sampling) else 404), looks.get(request.path, {})
        if request.path in orders:
            self.log.append(request.path)
            return await orders[request.path](request)
        if request.path in sampling:
            return await sampling[request.path](request.body or {})
        return 404, {}

    # --- sampling ---------------------------------------------------------------------------------------------------

    async def _complete(self, body: Mapping[str, Any]) -> tuple[int, Any]:
        prompt = body["prompt"]
        ids = self._encode(prompt) if isinstance(prompt, str) else self._read(list(prompt))
        name = str(body.get("model") or self._name)
        tokens, log_probs, _, reason = await self._sample(ids, body, name)
        choice: dict[str, Any] = {"text": self._tokenizer.decode(tokens), "finish_reason": reason}
        if Flaw.TEXT_ONLY not in self._flaws:
            choice |= {"token_ids": tokens, "prompt_token_ids": ids, "logprobs": {"token_logprobs": log_probs}}
            choice |= {"prompt_logprobs": self._score(ids, name)} if body.get("prompt_logprobs") is not None else {}
        return 200, {"choices": [choice], "usage": _usage(ids, tokens)}

    async def _stream(self, body: Mapping[str, Any], writer: asyncio.StreamWriter) -> bool:
        """Write one event for each token, as vLLM does for a prompt of token ids."""
        self.streamed.append(body)
        if error := self._reject(body):
            return await send(writer, 400, json.dumps({"error": {"message": error}}).encode())
        ids, first = self._read(list(body["prompt"])), True
        writer.write(b"HTTP/1.1 200 .\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        self._num_running += 1
        try:
            async for token, log_prob, tops, reason in self._tokens(ids, body):
                choice: dict[str, Any] = {"text": self._tokenizer.decode([token]), "finish_reason": reason}
                if Flaw.TEXT_ONLY not in self._flaws:
                    choice["token_ids"] = [token]
                    choice["logprobs"] = {"token_logprobs": [log_prob], "top_logprobs": [tops]}
                    choice |= {"prompt_token_ids": ids} if first else {}
                first = False
                writer.write(b"data: %s\n\n" % json.dumps({"choices": [choice]}).encode())
                await writer.drain()
                if Flaw.BREAKS_STREAMS in self._flaws:
                    return False
            writer.write(b"data: [DONE]\n\n")
            await writer.drain()
        finally:
            self._num_running -= 1
        return False

    def _reject(self, body: Mapping[str, Any]) -> str:
        try:
            self._mask(body)
        except ConfigError as error:
            return str(error)
        return ""

    def _mask(self, body: Mapping[str, Any]) -> GrammarMask | None:
        """Read vLLM's ``structured_outputs``: a JSON schema, or a grammar of one rule in Lark's form."""
        asked = body.get("structured_outputs") or {}
        term = json_grammar(asked["json"]) if "json" in asked else str(asked.get("grammar", "")).removeprefix("start: ")
        return GrammarCompiler(ChatRenderer(self._tokenizer)).compile(term) if term else None

    async def _tokens(
        self, prompt: Sequence[int], body: Mapping[str, Any]
    ) -> AsyncIterator[tuple[int, float, dict[str, float], str | None]]:
        """Sample under the biases and the grammar of ``body``; log-probabilities stay those of the model."""
        mask, bias = self._mask(body), {int(key): value for key, value in (body.get("logit_bias") or {}).items()}
        generator = torch.Generator().manual_seed(int(body.get("seed", 0)))
        answer, reason, limit = list[int](), None, int(body["max_tokens"])
        while reason is None:
            await asyncio.sleep(0)
            log_probs = self._log_probs([*prompt, *answer], str(body.get("model") or self._name))[-1]
            token = self._shaped_token(log_probs, mask, bias, float(body["temperature"]), generator)
            answer.append(token)
            is_stopped = token in body["stop_token_ids"]
            reason = "stop" if is_stopped else "length" if len(answer) == limit else None
            values, places = log_probs.topk(int(body["logprobs"]))
            tops = {f"token_id:{place}": value for place, value in zip(places.tolist(), values.tolist(), strict=True)}
            yield token, float(log_probs[token]), tops | {f"token_id:{token}": float(log_probs[token])}, reason

    def _shaped_token(
        self,
        log_probs: torch.Tensor,
        mask: GrammarMask | None,
        bias: Mapping[int, float],
        temperature: float,
        generator: torch.Generator,
    ) -> int:
        shaped = log_probs.clone()
        for token, change in bias.items():
            shaped[token] += change
        if mask is not None:
            shaped[~torch.from_numpy(mask.allowed(len(shaped)))] = -torch.inf
        if temperature == 0.0:
            token = int(shaped.argmax())
        else:
            token = int(torch.multinomial(torch.softmax(shaped / temperature, dim=-1), 1, generator=generator))
        if mask is not None:
            mask.accept(token)
        return token

    async def _generate(self, body: Mapping[str, Any]) -> tuple[int, Any]:
        ids = self._read(body["token_ids"])
        tokens, log_probs, spans, reason = await self._sample(
            ids, body["sampling_params"], str(body.get("model") or self._name)
        )
        content = [{"token_id": token, "logprob": lp} for token, lp in zip(tokens, log_probs, strict=True)]
        choice: dict[str, Any] = {"token_ids": tokens, "logprobs": {"content": content}, "finish_reason": reason}
        choice["weight_versions"] = spans
        return 200, {"choices": [choice], "usage": _usage(ids, tokens), "prompt_token_ids": ids}

    async def _sample(
        self, prompt: list[int], params: Mapping[str, Any], name: str
    ) -> tuple[list[int], list[float], list[dict[str, Any]], str]:
        """Wait for this request's turn; return (tokens, log-probabilities, spans of versions, reason of the end)."""
        await self._is_open.wait()
        self._num_running += 1
        self._is_idle.clear()
        self._look_up(prompt)
        try:
            sample = await self._continue(prompt, params, name)
        finally:
            self._num_running -= 1
            if not self._num_running:
                self._is_idle.set()
        self._remember([*prompt, *sample[0]])
        return sample

    async def _continue(
        self, prompt: list[int], params: Mapping[str, Any], name: str
    ) -> tuple[list[int], list[float], list[dict[str, Any]], str]:
        generator = torch.Generator().manual_seed(int(params.get("seed", 0)))
        stop = set(params.get("stop_token_ids") or ())
        limit = int(params["max_tokens"])
        limit = min(limit, 3) if Flaw.CAPS_REPLIES in self._flaws else limit
        tokens, log_probs, versions = list[int](), list[float](), list[str]()
        reason = "length"
        while len(tokens) < limit and reason == "length":
            await asyncio.sleep(0)
            await self._is_resumed.wait()
            token, log_prob = self._draw(self._log_probs([*prompt, *tokens], name)[-1], params, generator)
            tokens.append(token)
            log_probs.append(log_prob)
            versions.append(self.version)
            await self.on_token(len(tokens))
            has_own_stop = Flaw.OWN_STOP in self._flaws and len(tokens) == 2
            reason = "stop" if token in stop or has_own_stop else "length"
        return tokens, log_probs, _spans(versions), reason

    def _draw(
        self, log_probs: torch.Tensor, params: Mapping[str, Any], generator: torch.Generator
    ) -> tuple[int, float]:
        temperature = float(params["temperature"])
        if Flaw.GREEDY in self._flaws or temperature == 0.0:
            token = int(log_probs.argmax())
        else:
            weights = torch.softmax(log_probs / temperature, dim=-1)
            if Flaw.TOP_K in self._flaws:
                weights = weights * (weights >= weights.topk(8).values[-1])
            token = int(torch.multinomial(weights, 1, generator=generator))
        return token, float(log_probs[token])

    def _score(self, ids: Sequence[int], name: str) -> list[dict[str, Any] | None]:
        """Return the log-probability of each token after the first, in vLLM's format."""
        rows = self._log_probs(ids, name)[:-1]
        return [None, *({str(id_): {"logprob": float(row[id_])}} for row, id_ in zip(rows, ids[1:], strict=True))]

    @torch.no_grad()
    def _log_probs(self, ids: Sequence[int], name: str) -> torch.Tensor:
        """Return [tokens, vocab] natural log-probabilities of the next token."""
        return torch.log_softmax(self._models[name](torch.tensor([list(ids)])).logits[0].float(), dim=-1)

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        ids = ids[::-1] if Flaw.OTHER_TOKENIZER in self._flaws else ids
        return ids[-_KEPT_WHEN_TRUNCATING:] if Flaw.TRUNCATES in self._flaws else ids

    def _read(self, ids: list[int]) -> list[int]:
        is_cut = {Flaw.TRUNCATES, Flaw.TRUNCATES_IDS} & self._flaws
        return ids[-_KEPT_WHEN_TRUNCATING:] if is_cut else ids

    def _look_up(self, ids: Sequence[int]) -> None:
        self.num_prompt_tokens += len(ids)
        for end in range(_BLOCK_TOKENS, len(ids) + 1, _BLOCK_TOKENS):
            if tuple(ids[:end]) not in self._blocks:
                return
            self.num_cached_tokens += _BLOCK_TOKENS

    def _remember(self, ids: Sequence[int]) -> None:
        self._blocks |= {tuple(ids[:end]) for end in range(_BLOCK_TOKENS, len(ids) + 1, _BLOCK_TOKENS)}

    # --- weight updates ---------------------------------------------------------------------------------------------

    async def _pause(self, request: HttpRequest) -> tuple[int, Any]:
        self._is_open.clear()
        self.is_paused.set()
        if request.query.get("mode") == "wait":
            await self._is_idle.wait()
        self._is_resumed.clear()
        if Flaw.DEAF_TO_PAUSE in self._flaws:
            await self._is_resumed.wait()
        return 200, {"status": "paused"}

    async def _resume(self, request: HttpRequest) -> tuple[int, Any]:
        self.is_paused.clear()
        self._is_resumed.set()
        self._is_open.set()
        return 200, {"status": "resumed"}

    async def _reload(self, request: HttpRequest) -> tuple[int, Any]:
        if Flaw.CANNOT_LOAD in self._flaws:
            return 400, {"error": "no such folder"}
        state = load_model(Path((request.body or {})["kwargs"]["weights_path"])).state_dict()
        return self._take(state)

    async def _load_adapter(self, request: HttpRequest) -> tuple[int, Any]:
        body = request.body or {}
        name, folder = str(body["lora_name"]), Path(body["lora_path"])
        if name in self._models and not body.get("load_inplace"):
            return 400, {"error": {"message": f"The lora adapter '{name}' has already been loaded."}}
        if not (folder / "adapter_config.json").is_file():
            return 404, {"error": {"message": f"No adapter found for {folder}"}}
        made = copy.deepcopy(self._models[self._name])
        if Flaw.IGNORES_WEIGHTS not in self._flaws:
            _merge(made, folder)
        self._models[name] = made
        return 200, {}

    def _take(self, state: Mapping[str, torch.Tensor]) -> tuple[int, Any]:
        model = self._models[self._name]
        if Flaw.IGNORES_WEIGHTS not in self._flaws:
            head: Any = model.get_output_embeddings()
            old = head.weight.detach().clone()
            model.load_state_dict(state)
            if Flaw.STALE_HEAD in self._flaws:
                head.weight = torch.nn.Parameter(old)
        return 200, {}

    async def _reset(self, request: HttpRequest) -> tuple[int, Any]:
        self._blocks.clear()
        return 200, {"success": True}

    async def _set_version(self, request: HttpRequest) -> tuple[int, Any]:
        self.version = str((request.body or {})["new_version"])
        return 200, {"success": True}


async def _nothing(_: int) -> None:
    pass


@torch.no_grad()
def _merge(model: Any, folder: Path) -> None:
    """Add the adapter in ``folder``, as peft stores it, to the weights of ``model``."""
    settings = json.loads((folder / "adapter_config.json").read_text())
    parts = load_file(folder / "adapter_model.safetensors")
    for key, low in parts.items():
        if key.endswith(".lora_A.weight"):
            layer = model.get_submodule(key.removeprefix("base_model.model.").removesuffix(".lora_A.weight"))
            high = parts[key.replace(".lora_A.", ".lora_B.")]
            layer.weight += settings["lora_alpha"] / settings["r"] * (high @ low)


def _spans(versions: Sequence[str]) -> list[dict[str, Any]]:
    spans: list[dict[str, Any]] = []
    for position, version in enumerate(versions):
        if not spans or spans[-1]["version"] != version:
            spans.append({"version": version, "start": position, "end": position})
        spans[-1]["end"] = position + 1
    return spans


def _usage(prompt: Sequence[int], tokens: Sequence[int]) -> dict[str, int]:
    return {"prompt_tokens": len(prompt), "completion_tokens": len(tokens), "total_tokens": len(prompt) + len(tokens)}
