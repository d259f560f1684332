"""Shape of a group: independent chains, or a tree of chains and of branches from their turns. Imports no torch."""

from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from repairgym.records import Record


class NoTreeConfig(Record):
    """Chains only: every member of a group begins at the task's start (GRPO and its successors)."""

    type: Literal["none"] = "none"


class TreeConfig(Record):
    """Some members begin at the task's start; the others are branches, which begin behind a turn of another member.

    ``type`` chooses these turns. ``random``: any (Tree-GRPO, arXiv 2509.21240). ``entropy``: the least likely actions
    of the policy, by their mean -log p per token (TreeRL, arXiv 2506.11902). ``uncertainty``: states whose value V, the
    mean reward of the members that visited them, has the largest V (1 - V). ``novelty``: states that the fewest members
    visited. The last two are our choice.
    """

    type: Literal["random", "entropy", "uncertainty", "novelty"] = "random"
    num_chains: PositiveInt = 4
    """Members that begin at the task's start. The group size counts leaves: all other members are branches."""
    num_rounds: PositiveInt = 1
    """Equal portions in which branches are added; turns of earlier branches can be branched, too (both papers: L)."""
    num_per_turn: PositiveInt = 1
    """Branches behind each chosen turn (TreeRL: T = 2)."""

    def num_turns_chosen(self, num_leaves: int) -> int:
        """Return the number of turns that each round chooses in a group of ``num_leaves``.

        Raises:
            ValueError: the branches cannot be divided so.
        """
        num_branches, portion = num_leaves - self.num_chains, self.num_rounds * self.num_per_turn
        if num_branches < portion or num_branches % portion:
            raise ValueError(
                f"tree.num_chains={self.num_chains} of {num_leaves} leaves leaves {num_branches} branches, expected a "
                f"multiple of num_rounds * num_per_turn = {portion}"
            )
        return num_branches // portion


GroupTreeConfig = Annotated[NoTreeConfig | TreeConfig, Field(discriminator="type")]


def check_tree(tree: GroupTreeConfig, num_leaves: int, agent: str) -> None:
    """Raise a ValueError where groups of ``num_leaves`` cannot be such trees, or where ``agent`` cannot branch."""
    if isinstance(tree, NoTreeConfig):
        return
    tree.num_turns_chosen(num_leaves)
    if agent != "pipeline":
        raise ValueError(
            f"tree.type={tree.type!r} with rollout.agent.type={agent!r}: the state of an external agent's program is "
            "not recorded, so its episodes cannot branch; set tree.type='none'"
        )
