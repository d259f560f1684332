"""Training samples: token ids, weights of the learned tokens, and the sampler's log-probabilities.

Reads trajectory ledgers (never text); makes `Sample` records. Guarantees: arrays of a sample have one length; the first
token is never learned; in a policy sample every learned token has the log-probability it was sampled with; a token that
was sampled once is learned once, also where histories fork; tokens are left out, never encoded again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from transformers import PreTrainedTokenizerFast

from repairgym.errors import ConfigError
from repairgym.learning.rewards import is_exploit
from repairgym.ledger import UNKNOWN_VERSION, Branch, TokenLedger
from repairgym.records import Trajectory, Turn

ERRORS = frozenset({"format", "tool"})
"""`Turn.error` of turns that get no credit under ``is_error_masked``."""
_LOG_PROB_NOISE = 1e-3
"""Engines of lower precision may report a certain token slightly above log 1."""


@dataclass(frozen=True, eq=False)
class Sample:
    """One sequence to learn from."""

    token_id: np.ndarray
    """[tokens] int32."""
    weight: np.ndarray
    """[tokens] float32 weight of each token's loss; 0.0 where not learned."""
    old_log_prob: np.ndarray
    """[tokens] float32 log-probability under the sampling policy; 0.0 where not learned or not sampled."""
    advantage: float | np.ndarray = 1.0
    """Of the whole sequence, or [tokens] float32 of each token."""
    group_id: str = ""
    """Of a policy sample the group of its trajectory, of an imitated one its task."""
    trajectory_id: str = ""
    """Samples of one trajectory, the branches of a forked history, have one id; empty: a trajectory of its own."""
    turn: np.ndarray | None = None
    """[tokens] int32 turn of each action token, -1 elsewhere; None: the sequence is one turn."""
    reward: float = 0.0
    """Of the trajectory; only a value head reads it."""
    reference_log_prob: np.ndarray | None = None
    """[tokens] float32 log-probability under the reference policy, where the loss has a term for it."""
    old_value: np.ndarray | None = None
    """[tokens] float32 value before the update."""
    value_target: np.ndarray | None = None
    """[tokens] float32 target of the value head."""
    correction: np.ndarray | None = None
    """[tokens] float32 importance-sampling factor of each token's loss."""
    is_exploit: bool = False
    """Its trajectory was caught at an exploit, so none of its tokens may be praised."""
    hint: tuple[int, ...] = ()
    """Tokens that a self-teacher reads before the sequence; never sampled behind, never learned."""

    def __post_init__(self) -> None:
        lengths = {len(array) for array in self.arrays().values()}
        if len(lengths) != 1 or not len(self.token_id):
            raise ValueError(f"sample arrays must be equally long and not empty, got lengths {sorted(lengths)}")
        if self.weight[:1].any():
            raise ValueError("the first token cannot be learned: nothing predicts it")

    def __len__(self) -> int:
        return len(self.token_id)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays by name, each with one entry per token."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, np.ndarray)}

    @property
    def num_to_compute(self) -> int:
        """Number of tokens up to the last learned one; an observation after it teaches nothing."""
        return int(np.flatnonzero(self.weight)[-1]) + 1 if self.num_learned else 0

    @property
    def num_learned(self) -> int:
        """Number of tokens with a weight."""
        return int(np.count_nonzero(self.weight))

    @property
    def has_advantage(self) -> bool:
        """True when a learned token is better or worse than expected."""
        return bool(np.any(np.broadcast_to(self.advantage, self.weight.shape)[self.weight != 0.0]))


def text_sample(token_ids: Sequence[int]) -> Sample:
    """Make a sample of a plain text: every token but the first is learned."""
    ids = np.asarray(token_ids, dtype=np.int32)
    weight = np.ones(len(ids), dtype=np.float32)
    weight[:1] = 0.0
    return Sample(ids, weight, np.zeros(len(ids), dtype=np.float32))


def supervised_sample(trajectory: Trajectory, *, is_format_error_masked: bool = False) -> Sample:
    """Make a sample to imitate; ``is_format_error_masked`` leaves out format errors (paper B, section 4.2)."""
    ledger = trajectory.ledger
    weight = _action_weight(
        trajectory, [turn.error == "format" and is_format_error_masked for turn in trajectory.turns]
    )
    # Not the trajectory's own group, which is of one phase and one chain: a task is held out with all its samples.
    return Sample(ledger.token_id, weight, np.zeros(len(ledger), dtype=np.float32), group_id=trajectory.task_id)


def policy_sample(
    trajectory: Trajectory, advantage: float | np.ndarray, *, reward: float = 0.0, is_error_masked: bool = False
) -> Sample:
    """Make a sample for a policy gradient; a value head learns from ``reward`` instead of ``advantage``.

    ``advantage`` is of the trajectory or, [turns], of each turn. ``is_error_masked`` leaves out turns that ended in an
    error where the advantage is positive. `ValueError` if an action token has no log-probability of the sampling
    policy.
    """
    ledger, turns = trajectory.ledger, trajectory.turns
    is_positive = np.broadcast_to(np.asarray(advantage) > 0, len(turns))
    is_masked = [
        is_error_masked and turn.error in ERRORS and better for turn, better in zip(turns, is_positive, strict=True)
    ]
    weight = _action_weight(trajectory, is_masked)
    _check_log_probs(trajectory.id, ledger, weight)
    old = np.where(weight > 0, ledger.log_prob, np.float32(0.0)).astype(np.float32)
    turn = _turn_index(len(ledger), turns)
    return Sample(
        ledger.token_id,
        weight,
        old,
        # The last entry is that of tokens outside of turns, whose index is -1.
        np.append(advantage, 0.0).astype(np.float32)[turn] if isinstance(advantage, np.ndarray) else advantage,
        trajectory.group_id,
        trajectory_id=trajectory.id,
        turn=turn,
        reward=reward,
        is_exploit=is_exploit(trajectory.verdict),
    )


def _check_log_probs(name: str, ledger: TokenLedger, weight: np.ndarray) -> None:
    """Reject a learned token without a sampling log-probability."""
    learned = weight > 0
    is_known = (ledger.policy_version >= 0) & np.isfinite(ledger.log_prob) & (ledger.log_prob <= _LOG_PROB_NOISE)
    if not is_known[learned].all():
        position = int(np.flatnonzero(learned & ~is_known)[0])
        raise ValueError(
            f"trajectory {name}: token {position} has no sampling log-probability "
            f"(log_prob={ledger.log_prob[position]}, policy_version={ledger.policy_version[position]}); "
            "policy-gradient samples must come from a policy that returns them"
        )


def _turn_index(num_tokens: int, turns: Sequence[Turn]) -> np.ndarray:
    index = np.full(num_tokens, -1, dtype=np.int32)
    for number, turn in enumerate(turns):
        index[turn.action_span[0] : turn.action_span[1]] = number
    return index


def _action_weight(trajectory: Trajectory, is_masked: Sequence[bool]) -> np.ndarray:
    weight = trajectory.ledger.is_action.astype(np.float32)
    for turn, is_left_out in zip(trajectory.turns, is_masked, strict=True):
        if is_left_out:
            weight[turn.action_span[0] : turn.action_span[1]] = 0.0
    weight[:1] = 0.0
    return weight


def split_histories(trajectory: Trajectory) -> list[Trajectory]:
    """Split a forked trajectory into one unforked trajectory per history in which something was sampled.

    A part holds the tokens as the policy saw them; a token that was sampled once is an action in one part. Parts have
    the trajectory's id and the numbers of its turns, so denominators per trajectory and per turn count it once. A turn
    of another part has an empty span. A trajectory that never forked is returned as it is.
    """
    if not trajectory.ledger.branches:
        return [trajectory]
    parts = (_part(trajectory, number) for number in range(len(trajectory.ledger.branches)))
    return [part for part in parts if part.ledger.is_action.any()]


def _part(trajectory: Trajectory, number: int) -> Trajectory:
    ledger = trajectory.ledger
    branch = ledger.branches[number]
    end = ledger.branches[number + 1].start if number + 1 < len(ledger.branches) else len(ledger)
    positions = _positions(branch)
    offset_of = {int(position): offset for offset, position in enumerate(positions)}
    turns = tuple(
        turn.model_copy(update={"action_span": _moved(turn.action_span, offset_of, branch.start, end)})
        for turn in trajectory.turns
    )
    return replace(trajectory, ledger=_gather(ledger, positions, branch.start), turns=turns)


def _positions(branch: Branch) -> np.ndarray:
    """[tokens of the history] places in the flat arrays, in the order in which the policy saw them."""
    return np.concatenate([np.arange(start, end) for start, end in branch.spans] or [np.arange(0)])


def _gather(ledger: TokenLedger, positions: np.ndarray, start: int) -> TokenLedger:
    """The tokens at ``positions``; those before ``start`` were sampled in another history and are context here."""
    is_action = ledger.is_action[positions] & (positions >= start)
    return TokenLedger(
        token_id=ledger.token_id[positions],
        is_action=is_action,
        log_prob=np.where(is_action, ledger.log_prob[positions], np.float32(0.0)).astype(np.float32),
        policy_version=np.where(is_action, ledger.policy_version[positions], UNKNOWN_VERSION).astype(np.int32),
    )


def _moved(span: tuple[int, int], offset_of: dict[int, int], start: int, end: int) -> tuple[int, int]:
    """Span in this history of an action sampled in it (flat positions ``start`` to ``end``); else (0, 0)."""
    first, last = span
    if first == last or not start <= first < end:
        return (0, 0)
    return offset_of[first], offset_of[last - 1] + 1


THOUGHT_START = "<think>"
THOUGHT_END = "</think>"


def thought_token_ids(tokenizer: PreTrainedTokenizerFast) -> tuple[int, int]:
    """Return the ids of the tokens that open and close a thought; `ConfigError` if the tokenizer has no such tokens."""
    vocabulary = tokenizer.get_vocab()
    missing = [token for token in (THOUGHT_START, THOUGHT_END) if token not in vocabulary]
    if missing:
        raise ConfigError(
            f"thoughts='remove' needs the tokens {THOUGHT_START} and {THOUGHT_END}, but the tokenizer lacks "
            f"{', '.join(missing)}; use a model that thinks, or thoughts='keep'"
        )
    return vocabulary[THOUGHT_START], vocabulary[THOUGHT_END]


def without_thoughts(sample: Sample, start_id: int, end_id: int) -> Sample:
    """Return ``sample`` without its thoughts and all their marks.

    As the agent loop reads it, the first end closes a thought, whatever was opened in it. An unclosed thought extends
    to the end.
    """
    is_start, is_end = sample.token_id == start_id, sample.token_id == end_id
    last_mark = np.maximum.accumulate(np.where(is_start | is_end, np.arange(len(sample)), -1))
    is_outside = ~((last_mark >= 0) & is_start[last_mark] | is_end)
    return replace(sample, **{name: array[is_outside] for name, array in sample.arrays().items()})
