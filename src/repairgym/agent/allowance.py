"""The costs of an episode's own turns, and the bounds at which a search stops it between two of them.

Reads turns and ledger, of a running episode or a stored one; makes `Spending` records. Guarantees: both are counted by
the same rule, so a stored episode exceeds its allowance by one action at most; turns that a branch has of its parent
cost nothing again; an episode within an allowance acts at least once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from repairgym.agent.tools.roles import is_test_run
from repairgym.config.models import Price
from repairgym.ledger import Branch, TokenLedger
from repairgym.records import Record, Turn


class Spending(Record):
    """Costs of a candidate or of a search."""

    num_sampled_tokens: int = 0
    num_forward_tokens: int = 0
    num_test_runs: int = 0
    wall_s: float = 0.0
    cost_usd: float = 0.0

    def __add__(self, other: "Spending") -> "Spending":
        """Return the sum; the seconds are those of one after the other."""
        return Spending(**{name: value + getattr(other, name) for name, value in self})


@dataclass(frozen=True)
class Allowance:
    """The most that one episode may use itself; None: no bound."""

    max_turns: int | None = None
    max_sampled_tokens: float | None = None
    max_forward_tokens: float | None = None
    max_test_runs: float | None = None
    """The last one is that of its grading."""
    max_wall_s: float | None = None
    max_cost_usd: float | None = None
    price: Price | None = None
    """Of the policy's model; None for a local one."""

    def is_used(self, turns: Sequence[Turn], num_shared: int, ledger: Callable[[], TokenLedger]) -> bool:
        """Return True when no other turn is left behind ``turns``, of which the first ``num_shared`` are a parent's."""
        own = turns[num_shared:]
        if not own:
            return False
        num_test_runs = sum(map(is_test_run, own))
        if self.max_test_runs is not None and num_test_runs and num_test_runs + 1 >= self.max_test_runs:
            return True
        is_ledger_read = self.max_forward_tokens is not None or self.max_cost_usd is not None
        spent = spend(turns, num_shared, ledger(), self.price) if is_ledger_read else Spending()
        num_sampled = sum(end - start for start, end in (turn.action_span for turn in own))
        used = (
            (self.max_turns, len(own)),
            (self.max_sampled_tokens, num_sampled),
            (self.max_forward_tokens, spent.num_forward_tokens),
            (self.max_wall_s, seconds_of(own)),
            (self.max_cost_usd, spent.cost_usd),
        )
        return any(bound is not None and amount >= bound for bound, amount in used)


def spend(turns: Sequence[Turn], num_shared: int, ledger: TokenLedger, price: Price | None) -> Spending:
    """Return the costs of ``turns`` but the first ``num_shared``, without final grading and outer loop.

    Forward tokens are those behind the last shared action: a cache keeps what is before it.
    """
    own, first = turns[num_shared:], turns[num_shared - 1].action_span[1] if num_shared else 0
    return Spending(
        num_sampled_tokens=int(ledger.is_action[first:].sum()),
        num_forward_tokens=sum(_num_forward(branch, first) for branch in ledger.histories),
        num_test_runs=sum(map(is_test_run, own)),
        wall_s=seconds_of(own),
        cost_usd=sum(_cost_usd(own, branch, price) for branch in ledger.histories) if price else 0.0,
    )


def seconds_of(turns: Sequence[Turn]) -> float:
    """Return the seconds of ``turns``."""
    return sum(turn.generate_s + turn.tool_s for turn in turns)


def _num_forward(branch: Branch, first: int) -> int:
    """Return the tokens of a history from ``first`` on; all where it was begun behind that."""
    least = 0 if branch.start >= first else first
    return sum(max(0, end - max(start, least)) for start, end in branch.spans)


def _cost_usd(turns: Sequence[Turn], branch: Branch, price: Price) -> float:
    """Return the price of the answers of one history, each after all that its prompt held."""
    total_usd = 0.0
    for start, end in (turn.action_span for turn in turns):
        if start >= branch.start and any(first <= start < last for first, last in branch.spans):
            prompt = sum(min(last, start) - first for first, last in branch.spans if first < start)
            total_usd += price.cost_usd(prompt, 0, end - start)
    return total_usd
