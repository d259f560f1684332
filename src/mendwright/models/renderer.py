r"""Chat rendering by deltas: token ids of what the environment says, never of what the model said.

Reads observation texts; makes token ids of the ChatML form ``<|im_start|>role\n...<|im_end|>\n``. Invariants:
appending the deltas and the sampled ids gives the rendering of the whole conversation; text of an observation never
becomes a special token; model output is never encoded again.
"""

from __future__ import annotations

from transformers import PreTrainedTokenizerFast

from mendwright.errors import ModelFolderError

MESSAGE_START = "<|im_start|>"
MESSAGE_END = "<|im_end|>"

CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)


class ChatMLRenderer:
    """Deltas of a conversation between ``user`` (the environment) and ``assistant`` (the policy)."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, *, system: str | None = None) -> None:
        """Look up the special tokens.

        Args:
            tokenizer: Knows `MESSAGE_START` and `MESSAGE_END` as single tokens.
            system: Text of a system message that opens every conversation.

        Raises:
            ModelFolderError: the tokenizer has no ChatML tokens.
        """
        self._tokenizer = tokenizer
        self._start_id = self._special(MESSAGE_START)
        self._end_id = self._special(MESSAGE_END)
        self._newline_ids = self._encode("\n")
        self._assistant_ids = [self._start_id, *self._encode("assistant\n")]
        self._opening_ids = [] if system is None else self._message("system", system)

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Tokens that end an action."""
        return (self._end_id,)

    def open_ids(self, observation: str, system: str = "") -> list[int]:
        """The first prompt: (system message,) first user message, assistant header.

        Args:
            observation: Text of the user message.
            system: Text of the system message; empty: the renderer's own, if it has one.
        """
        opening_ids = self._message("system", system) if system else self._opening_ids
        return opening_ids + self._message("user", observation) + self._assistant_ids

    def observation_ids(self, text: str, is_stopped: bool) -> list[int]:
        """What follows an action.

        Args:
            text: The next observation.
            is_stopped: The model sampled the stop token itself; otherwise it is written here, as context.
        """
        closing = [] if is_stopped else [self._end_id]
        return closing + self._newline_ids + self._message("user", text) + self._assistant_ids

    def action_ids(self, text: str) -> list[int]:
        """Token ids of a scripted teacher's action, stop token included. Never for text that a model sampled."""
        return [*self._encode(text), self._end_id]

    def decode(self, token_ids: list[int]) -> str:
        """Text of an action's token ids, without the stop token."""
        kept = token_ids[:-1] if token_ids and token_ids[-1] == self._end_id else token_ids
        text = self._tokenizer.decode(kept, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return str(text)

    def last_observation(self, token_ids: list[int]) -> str:
        """Text of the last user message in ``token_ids``, for scripted policies that read instead of sampling."""
        text = str(self._tokenizer.decode(token_ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))
        return text.rpartition(f"{MESSAGE_START}user\n")[2].partition(MESSAGE_END)[0]

    def _message(self, role: str, text: str) -> list[int]:
        return [self._start_id, *self._encode(f"{role}\n{text}"), self._end_id, *self._newline_ids]

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
        return ids

    def _special(self, token: str) -> int:
        token_id = self._tokenizer.get_vocab().get(token)
        if token_id is None:
            raise ModelFolderError(f"the tokenizer has no token {token}; expected a ChatML (Qwen-style) tokenizer")
        return int(token_id)
