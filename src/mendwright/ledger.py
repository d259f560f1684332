"""The tokens of an episode as they were sampled: the record that training learns from.

Made turn by turn by the episode loop; read by the run store, the learner and the report. Invariants: what was appended
never changes; every action token has the log-probability and the policy version it was sampled with.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

UNKNOWN_VERSION = -1
"""Policy version of a token that no policy sampled from the history that the ledger holds."""


@dataclass(frozen=True)
class TokenLedger:
    """The tokens of one episode as they were sampled; text is a view of them.

    All arrays are 1-D with one length T: ``token_id`` int32, ``is_action`` bool (sampled by the policy),
    ``log_prob`` float32 (natural log under the sampling policy, 0.0 where not an action), ``policy_version`` int32
    (-1 where not an action).
    """

    token_id: np.ndarray
    is_action: np.ndarray
    log_prob: np.ndarray
    policy_version: np.ndarray

    def __post_init__(self) -> None:
        lengths = {len(self.token_id), len(self.is_action), len(self.log_prob), len(self.policy_version)}
        if len(lengths) != 1:
            raise ValueError(f"token ledger arrays differ in length: {sorted(lengths)}")

    def __len__(self) -> int:
        return len(self.token_id)


class LedgerBuilder:
    """Grows a :class:`TokenLedger` turn by turn; what was appended never changes."""

    def __init__(self) -> None:
        self._token_id: list[int] = []
        self._is_action: list[bool] = []
        self._log_prob: list[float] = []
        self._policy_version: list[int] = []

    def __len__(self) -> int:
        return len(self._token_id)

    @property
    def token_ids(self) -> list[int]:
        """All token ids so far: the next prompt."""
        return self._token_id

    def append_context(self, token_ids: list[int]) -> None:
        """Append tokens that the environment wrote."""
        self._extend(token_ids, False, [0.0] * len(token_ids), -1)

    def append_action(self, token_ids: list[int], log_probs: list[float], policy_version: int) -> tuple[int, int]:
        """Append sampled tokens; returns their [start, end) span.

        Raises:
            ValueError: a sampled token has no log-probability.
        """
        if len(token_ids) != len(log_probs):
            raise ValueError(f"{len(token_ids)} sampled tokens came with {len(log_probs)} log-probabilities")
        start = len(self)
        self._extend(token_ids, True, log_probs, policy_version)
        return start, len(self)

    def _extend(self, ids: list[int], is_action: bool, log_probs: list[float], version: int) -> None:
        self._token_id.extend(ids)
        self._is_action.extend([is_action] * len(ids))
        self._log_prob.extend(log_probs)
        self._policy_version.extend([version] * len(ids))

    def build(self) -> TokenLedger:
        """The ledger so far."""
        return TokenLedger(
            token_id=np.asarray(self._token_id, dtype=np.int32),
            is_action=np.asarray(self._is_action, dtype=bool),
            log_prob=np.asarray(self._log_prob, dtype=np.float32),
            policy_version=np.asarray(self._policy_version, dtype=np.int32),
        )
