"""Feedback on the episodes of a group, as the tokens that a self-teacher reads before an episode.

Reads graded groups of training tasks. Guarantees: feedback on an episode never holds that episode's own success; tokens
of episodes are those of their ledgers, and only the sentence about the verdict is encoded from text.
"""

from collections.abc import Sequence

from repairgym.inference.renderer import ChatRenderer
from repairgym.learning.samples import split_histories
from repairgym.records import Trajectory, VerdictKind
from repairgym.training.rollout_batch import Group


def hints_of(groups: Sequence[Group], renderer: ChatRenderer) -> dict[str, tuple[int, ...]]:
    """Return trajectory id -> the tokens before its sequence; none for a success that is alone.

    As in SDPO (arXiv 2601.20802): a success of another member, the shortest; where there is none, the failed attempt
    itself and what its verdict says.
    """
    hints = {}
    for group in groups:
        valid = [member for member in group.members if member.verdict.is_valid]
        passed = [member for member in valid if member.verdict.kind is VerdictKind.PASSED]
        passed.sort(key=lambda member: (len(member.ledger), member.id))
        for member in valid:
            other = next((success for success in passed if success.id != member.id), None)
            if other is not None:
                hints[member.id] = _tokens(other)
            elif member.verdict.kind is not VerdictKind.PASSED:
                hints[member.id] = _tokens(member) + _sentence(member, renderer)
    return hints


def _tokens(episode: Trajectory) -> tuple[int, ...]:
    """Return the tokens of the episode's last history."""
    return tuple(split_histories(episode)[-1].ledger.token_id.tolist())


def _sentence(episode: Trajectory, renderer: ChatRenderer) -> tuple[int, ...]:
    last = int(episode.ledger.token_id[-1])
    stop_id = last if last in renderer.stop_token_ids else None
    text = f"This attempt {episode.verdict.kind.value}: {episode.verdict.reason}"
    return tuple(renderer.observation_ids(text, stop_id))
