"""MALT (arXiv 2412.01928): one model becomes a patcher, a reviewer and a refiner, by credit from the ends of a tree.

1. Sample a tree per task: patches, reviews of each patch, refinements of each review. Reviews and refinements branch
   the stored episode, so that a refiner continues in the patcher's files; every end is graded.
2. Value a node by the mean verdict of the ends below it; above the threshold it is positive, else negative.
3. Train each role from the start model: SFT on its positives, then DPO on positives against negatives behind one
   history. The file of the three checkpoints is a policy.
"""

from collections.abc import Sequence
from pathlib import Path

from repairgym.agent.review import RIGHT, ROLES, WRONG, review_turn
from repairgym.agent.routing import Member, Team
from repairgym.config.pipeline import Role
from repairgym.config.rounds import MaltConfig
from repairgym.errors import TaskError
from repairgym.inference.loading import copy_folder
from repairgym.recipes.role_credit import Node, positives, role_nodes, role_pairs
from repairgym.recipes.step_dpo import PreferenceWork
from repairgym.records import Trajectory
from repairgym.rollout.jobs import EpisodeJob, num_shared_turns
from repairgym.tasks.layers.atomic_write import written_whole
from repairgym.training.evaluate import weights_digest
from repairgym.training.processes import assign
from repairgym.training.run import Run
from repairgym.training.supervised import fit_samples
from repairgym.training.trees import BranchedChains

START = "start"
STAGE = "malt"
TEAM_FILE = "malt.json"


def malt(run: Run, config: MaltConfig) -> Path:
    """From checkpoint ``start`` of ``run`` to a checkpoint for each role; returns the file that names them.

    Raises:
        ConfigError: no training task.
        TaskError: no role has a positive node.
    """
    tasks = run.select(config.select, STAGE)
    trees = RoleTrees(config, [task.id for task in tasks], run.seed)
    with run.store.phase(STAGE):
        episodes = run.run_jobs(run.policy(START), trees.jobs(), phase=STAGE, trees=trees)
    nodes = role_nodes(episodes)
    if not any(node.is_positive(config.threshold) for node in nodes):
        raise TaskError(
            f"{STAGE}: no patch, review or refinement of {len(tasks)} tasks has a value above {config.threshold}, so "
            "there is nothing to imitate; sample more (num_patches), take other tasks, or begin with a better model"
        )
    metrics = tree_metrics(nodes, config.threshold)
    run.progress(STAGE, 0, 0, f"{len(episodes)} ends, {metrics['malt/refiner_value']:.0%} of the refinements pass")
    run.store.add_metrics(STAGE, 0, metrics)
    for role in ROLES:
        _train(run, config, role, [node for node in nodes if node.role == role])
    return _write_team(run, config)


class RoleTrees(BranchedChains):
    """Patches, and the reviews and refinements that branch from them; a patch and its branches are a group."""

    def __init__(self, config: MaltConfig, task_ids: Sequence[str], seed: int) -> None:
        """Begin with the patches, each with its first review and refinement; ``seed`` is the run's."""
        super().__init__(STAGE, task_ids, config.num_patches, seed)
        self._config = config

    def branches(self, trajectory: Trajectory) -> list[EpisodeJob]:
        """Return the other reviews of a new patch, and the other refinements of a new review."""
        at, num_shared = review_turn(trajectory.turns), num_shared_turns(trajectory)
        if num_shared > at or not trajectory.verdict.is_valid:
            return []
        reviews = self._siblings(trajectory, at, self._config.num_reviews, is_kept=True) if not num_shared else []
        return reviews + self._siblings(trajectory, at + 1, self._config.num_refinements, is_kept=False)

    def _siblings(self, parent: Trajectory, num_turns: int, num: int, *, is_kept: bool) -> list[EpisodeJob]:
        """Return ``num`` - 1 siblings of what ``parent`` does behind ``num_turns``; none where it did nothing there."""
        ids = [f"{parent.id}:{num_turns}#{number}" for number in range(1, num)]
        return [self.branch(parent, id_, num_turns, is_kept=is_kept) for id_ in ids if num_turns < len(parent.turns)]


def tree_metrics(nodes: Sequence[Node], threshold: float) -> dict[str, float]:
    """Return number, mean value and positive share of the nodes of each role, and the value behind each judgement."""
    metrics = {}
    for role in ROLES:
        values = [node.value for node in nodes if node.role == role]
        metrics[f"malt/num_{role}_nodes"] = float(len(values))
        metrics[f"malt/{role}_value"] = sum(values) / max(1, len(values))
        num_positive = sum(node.is_positive(threshold) for node in nodes if node.role == role)
        metrics[f"malt/{role}_positive_share"] = num_positive / max(1, len(values))
    for judgement in (RIGHT, WRONG):
        rewards = [reward for node in nodes if node.judgement == judgement for reward in node.rewards]
        metrics[f"malt/num_{judgement}_ends"] = float(len(rewards))
        if rewards:
            metrics[f"malt/{judgement}_pass_rate"] = sum(rewards) / len(rewards)
    return metrics


def _train(run: Run, config: MaltConfig, role: Role, nodes: Sequence[Node]) -> None:
    """Make the checkpoint ``role``; a stage without examples leaves the weights as they are."""
    imitated = positives(nodes, config.threshold, config.max_per_task)
    pairs = role_pairs(nodes, config.threshold, config.max_per_task) if role in config.preferring_roles else []
    start, middle, target = run.checkpoint(START), run.checkpoint(f"{role}-sft"), run.checkpoint(role)
    if not middle.exists() and imitated:
        samples = [node.sample(is_format_error_masked=config.sft.is_format_error_masked) for node in imitated]
        fit_samples(start, middle, samples, config.sft, run.store, run.progress)
    elif not middle.exists():
        copy_folder(start, middle)
    metrics = {f"malt/num_{role}_positives": float(len(imitated)), f"malt/num_{role}_pairs": float(len(pairs))}
    if not target.exists() and pairs:
        run.progress(f"train {role}", 0, 0, f"{len(pairs)} pairs")
        work = PreferenceWork(middle, target, pairs, config.step_dpo)
        assign(work)
        learned = work.learn()[1]
        metrics |= {f"{role}/{name}": value for name, value in learned.items() if name.startswith("preference/")}
    elif not target.exists():
        copy_folder(middle, target)
    run.store.add_metrics(STAGE, 0, metrics)


def _write_team(run: Run, config: MaltConfig) -> Path:
    folders = {role: run.checkpoint(role).absolute() for role in ROLES}
    members = tuple(
        Member(name=role, folder=str(folder), weights_digest=weights_digest(folder)) for role, folder in folders.items()
    )
    file = run.checkpoint(TEAM_FILE)
    with written_whole(file) as stream:
        stream.write(Team(members=members, review=config.rollout.pipeline.review).model_dump_json(indent=2).encode())
    return file
