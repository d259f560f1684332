"""Settings of exploration: shape of a group, bonus for novelty, noise in the weights. Imports no torch."""

from typing import Annotated, Literal, Self

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from repairgym.records import Record


class NoTreeConfig(Record):
    """Chains only: every member of a group begins at the task's start (GRPO and its successors)."""

    type: Literal["none"] = "none"


class TreeConfig(Record):
    """Some members begin at the task's start; the others are branches, which begin behind a turn of another member.

    ``type`` chooses these turns. ``random``: any (Tree-GRPO, arXiv 2509.21240). ``entropy``: the least likely actions
    of the policy, by their mean -log p per token (TreeRL, arXiv 2506.11902). ``uncertainty``: states whose value V, the
    mean reward of the members that visited them, has the largest V (1 - V). ``ensemble``: states on whose value
    bootstrap resamples of the members disagree most, which few and mixed visits make, while V (1 - V) is as large for
    many (the rule of MARCO, arXiv 2107.06434, transferred from models of dynamics to counted values; it chooses where
    to sample and is never a reward). ``novelty``: states that the fewest members visited. The last three are our own.
    """

    type: Literal["random", "entropy", "uncertainty", "ensemble", "novelty"] = "random"
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


class PrefixSamplingConfig(Record):
    """Branches that steer a group to mixed rewards (Prefix Sampling, arXiv 2605.05112).

    Where most chains fail, the other members begin behind turns of a success (a head start); where most pass, behind
    turns of a failure (a handicap). Without such an episode they are chains. All branches of a group begin in one
    state, and members are compared with those that began in the same state. The place follows from counted values; the
    numbers are our choice, since the paper's were not found.
    """

    type: Literal["pass_rate"] = "pass_rate"
    num_chains: PositiveInt = 4
    """Members that begin at the task's start and show the pass rate. The group size counts leaves."""
    target: float = Field(default=0.5, gt=0.0, lt=1.0)
    """Pass rate to steer to: that of the largest p (1 - p)."""
    tolerance: NonNegativeFloat = 0.2
    """Distance of the chains' pass rate from ``target`` up to which the group is left alone."""
    prior_weight: PositiveFloat = 1.0
    """Visits that the first guess of a state's value counts as: a straight line over the turns, from the chains' pass
    rate to the reward of the episode."""
    is_earlier_used: bool = True
    """Begin with turns of the policy's earlier episodes of the task, too, where no chain has the reward it takes."""
    num_earlier: PositiveInt = 4
    """Latest earlier episodes of each reward that are looked at."""

    def num_turns_chosen(self, num_leaves: int) -> int:
        """Return 1; a ValueError unless at least two members of ``num_leaves`` can be compared with each other."""
        if num_leaves < self.num_chains + 2:
            raise ValueError(
                f"tree.num_chains={self.num_chains} of {num_leaves} leaves leaves {num_leaves - self.num_chains} "
                "branches, expected at least 2, which are compared with each other"
            )
        return 1


class SearchTreeConfig(Record):
    """Monte-Carlo tree search over turns, one leaf after another (RepoSearch-R1, arXiv 2510.26287).

    Each leaf begins where UCT = q / n + w sqrt(ln n_parent / n) leads, at the first node with fewer than
    ``num_children`` actions, and plays on to its end; its reward q and its visit n count on the whole path. Another
    action is sampled only at the chosen node, from the node's own history: nothing is sampled under a prompt that
    training does not see.
    """

    type: Literal["uct"] = "uct"
    num_chains: PositiveInt = 1
    """Members that begin at the task's start before the search. The group size counts leaves (RepoSearch-R1: 40)."""
    num_children: PositiveInt = 2
    """Most actions sampled from one node. RepoSearch-R1: 2."""
    exploration: NonNegativeFloat = 2.0
    """w at the first leaf. RepoSearch-R1: 2."""
    final_exploration: PositiveFloat = 0.1
    """Factor on w at the last leaf, reached geometrically. RepoSearch-R1: 0.1; 1 leaves w as it is."""
    num_learned: PositiveInt | None = None
    """Leaves that are learned: the best and the worst in turn, so that both rewards are there (RepoSearch-R1: 8). All
    leaves count in advantages, whatever is learned. None: all."""

    def num_turns_chosen(self, num_leaves: int) -> int:
        """Return 1; a ValueError where there is nothing to search or more is learned than sampled."""
        if num_leaves <= self.num_chains:
            raise ValueError(f"tree.num_chains={self.num_chains} of {num_leaves} leaves leaves none to search for")
        if self.num_learned and self.num_learned > num_leaves:
            raise ValueError(f"tree.num_learned={self.num_learned} of {num_leaves} leaves; expected at most all")
        return 1


GrownConfig = TreeConfig | PrefixSamplingConfig | SearchTreeConfig
GroupTreeConfig = Annotated[NoTreeConfig | GrownConfig, Field(discriminator="type")]


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


# --- bonus and noise -------------------------------------------------------------------------------------------------


class NoExplorationConfig(Record):
    """No bonus: the learner gets the reward of the verdict, as ``rl.reward`` shapes it."""

    type: Literal["none"] = "none"


class NoveltyConfig(Record):
    """A bonus for rare results of tests in the first iterations, then verdicts only.

    A transfer of the reward-free phase of "Mastering URLB from pixels" (arXiv 2209.12016): counts of what test runs
    said take the place of its networks. An episode gets ``weight`` / sqrt(N), N the episodes of the task so far that
    came to the rarest result that it came to after a change (`training/novelty.py`).
    """

    type: Literal["novelty"] = "novelty"
    weight: float = Field(default=0.5, gt=0.0, lt=1.0)
    """Most that a bonus can be; below 1, so that no failure is worth more than a success. Our choice."""
    num_iterations: PositiveInt = 10
    """First iterations that have the bonus. Our choice."""
    is_reward_free: bool = False
    """The paper's phase: the bonus alone, without verdicts."""


ExplorationConfig = Annotated[NoExplorationConfig | NoveltyConfig, Field(discriminator="type")]


class NoPerturbationConfig(Record):
    """Weights change by gradients only."""

    type: Literal["none"] = "none"


class PerturbationConfig(Record):
    """Mix of the weights with noise around the best checkpoints, where validation no longer improves.

    A transfer of the task-oriented perturbation of MENTOR (arXiv 2410.14972): w <- a w + (1 - a) w', w' drawn per
    parameter from the normal distribution of the best checkpoints, a = min(max(min_kept, 1 - dormant_rate d),
    max_kept) with d the share of dormant units; the optimizer begins again. There the best are agents by reward and the
    interval is fixed; here they are checkpoints by validation, and a plateau decides. Numbers whose source is not
    named are our choice.
    """

    type: Literal["best_checkpoints"] = "best_checkpoints"
    num_best: int = Field(default=3, ge=2)
    patience: PositiveInt = 3
    """Validations without a better one, since the best and since the last perturbation, that make a plateau."""
    min_kept: float = Field(default=0.6, ge=0.0, le=1.0)
    """Least share of the present weights; MENTOR 0.2, for networks that were not pre-trained."""
    max_kept: float = Field(default=0.9, ge=0.0, le=1.0)
    dormant_rate: NonNegativeFloat = 2.0
    """MENTOR: 2."""
    dormant_threshold: PositiveFloat = 0.025
    """A unit of a feed-forward layer is dormant when its mean |activation| is at most this part of its layer's mean
    (MENTOR's code)."""

    @model_validator(mode="after")
    def _bounds_are_ordered(self) -> Self:
        if self.min_kept > self.max_kept:
            raise ValueError(f"min_kept={self.min_kept} is above max_kept={self.max_kept}")
        return self


WeightPerturbationConfig = Annotated[NoPerturbationConfig | PerturbationConfig, Field(discriminator="type")]
