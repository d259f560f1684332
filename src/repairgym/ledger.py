"""The tokens of an episode as they were sampled: the record that training learns from.

Made turn by turn by the episode loop; read by the run store, the learner and the report. Guarantees: appended tokens
never change; every action token has the log-probability and the policy version of its sampling; where a history forks
(a part was cut), each branch lists the tokens that the policy saw, and each sampled token is an action in only one
branch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np  # a command that stops at a wrong argument needs none

Span = tuple[int, int]
"""[start, end) of the flat arrays of a ledger."""
UNKNOWN_VERSION = -1
"""Policy version of a token that no policy sampled from the history in the ledger."""


@dataclass(frozen=True)
class Branch:
    """One history of an episode, as parts of the flat arrays."""

    start: int
    """Tokens from here on were appended in this branch; earlier tokens in ``spans`` are copied context."""
    spans: tuple[Span, ...]
    """Context and actions of the policy, in order."""


@dataclass(frozen=True)
class Parent:
    """The episode that a branch of it begins with."""

    trajectory_id: str
    num_turns: int
    """Turns of it that the branch has replayed; they are the branch's own first turns, too."""


@dataclass(frozen=True)
class TokenLedger:
    """The tokens of one episode as they were sampled; text is a view of them.

    All arrays are 1-D with one length T: ``token_id`` int32, ``is_action`` bool (sampled by the policy),
    ``log_prob`` float32 (natural log under the sampling policy, 0.0 where not an action), ``policy_version`` int32
    (-1 where not an action). Without ``branches`` they are the one history of the episode.
    """

    token_id: np.ndarray
    is_action: np.ndarray
    log_prob: np.ndarray
    policy_version: np.ndarray
    branches: tuple[Branch, ...] = ()

    def __post_init__(self) -> None:
        lengths = {len(self.token_id), len(self.is_action), len(self.log_prob), len(self.policy_version)}
        if len(lengths) != 1:
            raise ValueError(f"token ledger arrays differ in length: {sorted(lengths)}")

    def __len__(self) -> int:
        return len(self.token_id)

    @property
    def histories(self) -> tuple[Branch, ...]:
        """The branches; one with everything where the history never forked."""
        return self.branches or (Branch(0, ((0, len(self)),)),)

    def prompt_of(self, action: Span) -> list[int]:
        """Return the ids that the policy saw before it sampled the tokens of ``action``."""
        history = next(branch for branch in reversed(self.histories) if branch.start <= action[0])
        ids: list[int] = []
        for start, end in history.spans:
            # A copied part that ends where the history forked is one span with what was appended behind it.
            ids += self.token_id[start : min(end, action[0])].tolist()
        return ids

    def as_context(self, num_tokens: int) -> TokenLedger:
        """Return the ledger with its first ``num_tokens`` as context: another episode sampled them."""
        is_action, log_prob, version = (array.copy() for array in (self.is_action, self.log_prob, self.policy_version))
        is_action[:num_tokens], log_prob[:num_tokens], version[:num_tokens] = False, 0.0, UNKNOWN_VERSION
        return TokenLedger(self.token_id, is_action, log_prob, version, self.branches)


class LedgerBuilder:
    """Builds a :class:`TokenLedger` turn by turn; appended tokens never change."""

    def __init__(self) -> None:
        self._token_id: list[int] = []
        self._is_action: list[bool] = []
        self._log_prob: list[float] = []
        self._policy_version: list[int] = []
        self._prompt: list[int] = []
        self._branches: list[tuple[int, list[Span]]] = [(0, [])]

    def __len__(self) -> int:
        """Tokens of the current history."""
        return len(self._prompt)

    @property
    def token_ids(self) -> list[int]:
        """All token ids of the current history: the next prompt."""
        return self._prompt

    def append_context(self, token_ids: Sequence[int]) -> Span:
        """Append tokens of the environment; return their span."""
        return self._extend(token_ids, False, [0.0] * len(token_ids), [UNKNOWN_VERSION] * len(token_ids))

    def append_action(
        self, token_ids: Sequence[int], log_probs: Sequence[float], policy_version: int | Sequence[int]
    ) -> Span:
        """Append sampled tokens, of one policy version or with a version each; return their span.

        Raises:
            ValueError: a sampled token has no log-probability or no version.
        """
        versions = [policy_version] * len(token_ids) if isinstance(policy_version, int) else policy_version
        if not len(token_ids) == len(log_probs) == len(versions):
            raise ValueError(
                f"{len(token_ids)} sampled tokens came with {len(log_probs)} log-probabilities and {len(versions)} "
                "versions"
            )
        return self._extend(token_ids, True, log_probs, versions)

    def fork(self) -> None:
        """Begin another, empty history; `copy` and `append_context` fill its beginning."""
        self._branches.append((len(self._token_id), []))
        self._prompt = []

    def copy(self, span: Span) -> None:
        """Copy tokens of an earlier history into this one, as context."""
        start, end = span
        self._prompt.extend(self._token_id[start:end])
        self._add_span(start, end)

    def slice(self, span: Span) -> list[int]:
        """Return the token ids of a span of any history."""
        return self._token_id[span[0] : span[1]]

    def _extend(self, ids: Sequence[int], is_action: bool, log_probs: Sequence[float], versions: Sequence[int]) -> Span:
        start = len(self._token_id)
        self._token_id.extend(ids)
        self._is_action.extend([is_action] * len(ids))
        self._log_prob.extend(log_probs)
        self._policy_version.extend(versions)
        self._prompt.extend(ids)
        self._add_span(start, len(self._token_id))
        return start, len(self._token_id)

    def _add_span(self, start: int, end: int) -> None:
        spans = self._branches[-1][1]
        if spans and spans[-1][1] == start:
            spans[-1] = (spans[-1][0], end)
        elif start < end:
            spans.append((start, end))

    def build(self) -> TokenLedger:
        """Return the ledger so far."""
        import numpy as np

        branches = tuple(Branch(start, tuple(spans)) for start, spans in self._branches)
        return TokenLedger(
            token_id=np.asarray(self._token_id, dtype=np.int32),
            is_action=np.asarray(self._is_action, dtype=bool),
            log_prob=np.asarray(self._log_prob, dtype=np.float32),
            policy_version=np.asarray(self._policy_version, dtype=np.int32),
            branches=branches if len(branches) > 1 else (),
        )
