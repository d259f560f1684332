"""Hints at wasted turns (after CoRT, arXiv 2506.09820): continue behind a hint, imitate the success without it.

1. Run the policy on training tasks; find the turns that its failures wasted (`agent/wasted_turns.py`).
2. Fork each episode before such a turn: some forks see a hint, as many do not (the control at equal compute).
3. Imitate the forks that passed. The record omits the hint, so what is learned is to do without it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from repairgym.agent.conversation import Hint
from repairgym.agent.wasted_turns import DETECTORS, wasted_turns
from repairgym.config.rounds import HintsConfig
from repairgym.errors import TaskError
from repairgym.inference.loading import load_tokenizer
from repairgym.records import Trajectory, VerdictKind
from repairgym.rollout.jobs import EpisodeJob
from repairgym.training.run import Run
from repairgym.training.supervised import fit_samples, keep_successes, supervised_samples
from repairgym.training.trees import BranchedChains

START = "start"
STAGE = "hints"
Arm = Literal["hinted", "unhinted"]
ARMS: tuple[Arm, ...] = ("hinted", "unhinted")


def hints(run: Run, config: HintsConfig) -> Path:
    """From checkpoint ``start`` of ``run`` to checkpoint ``hints``; returns its folder.

    Raises:
        ConfigError: no training task.
        TaskError: no failure wasted a turn, or no fork of the imitated kind passed.
    """
    tasks = run.select(config.select, STAGE)
    forks = Forks(config, [task.id for task in tasks], run.seed)
    with run.store.phase(STAGE):
        episodes = run.run_jobs(run.policy(START), forks.jobs(), phase=STAGE, trees=forks)
    metrics = forks.metrics(episodes)
    run.store.add_metrics(STAGE, 0, metrics)
    rates = [f"{arm} {metrics.get(f'hints/{arm}_pass_rate', 0.0):.0%}" for arm in ARMS]
    run.progress(STAGE, 0, 0, f"{metrics['hints/num_places']:.0f} wasted turns made again; passed: {', '.join(rates)}")
    imitated = [episode for episode in episodes if forks.arms.get(episode.id) == config.imitated]
    kept = keep_successes(imitated, config.max_per_task)
    if not kept:
        raise TaskError(
            f"{STAGE}: none of {len(imitated)} {config.imitated} forks of {len(tasks)} tasks passed, so there is "
            "nothing to imitate; sample more (num_samples, num_forks), or begin with a better model"
        )
    samples = supervised_samples(kept, config.sft, load_tokenizer(run.checkpoint(START)))
    fit_samples(run.checkpoint(START), run.checkpoint(STAGE), samples, config.sft, run.store, run.progress)
    return run.checkpoint(STAGE)


class Forks(BranchedChains):
    """Chains, and the forks before their wasted turns; a chain and its forks are a group of their own."""

    def __init__(self, config: HintsConfig, task_ids: Sequence[str], seed: int) -> None:
        """Begin with the chains; ``seed`` is the run's."""
        super().__init__(STAGE, task_ids, config.num_samples, seed)
        self._config = config
        self.kinds: dict[str, str] = {}
        """Trajectory id of a fork -> kind of the wasted turn that it makes again."""
        self.arms: dict[str, Arm] = {}
        """Trajectory id of a fork -> whether it sees the hint."""

    def branches(self, trajectory: Trajectory) -> list[EpisodeJob]:
        """Return the forks of a failed chain, hinted and unhinted in turn; none of anything else."""
        if trajectory.parent is not None or trajectory.verdict.kind is not VerdictKind.FAILED:
            return []
        # Before the first turn there is no observation to put a hint below.
        places = [(kind, at) for kind, at in wasted_turns(trajectory.turns) if at > 0][: self._config.max_places]
        return [
            self._fork(trajectory, kind, at, number, arm)
            for kind, at in places
            for number in range(self._config.num_forks)
            for arm in ARMS
        ]

    def _fork(self, parent: Trajectory, kind: str, at: int, number: int, arm: Arm) -> EpisodeJob:
        id_ = f"{parent.id}:{at}/{kind}/{arm}#{number}"
        self.kinds[id_], self.arms[id_] = kind, arm
        return self.branch(parent, id_, at, hint=Hint(DETECTORS[kind][1], at) if arm == "hinted" else None)

    def metrics(self, episodes: Sequence[Trajectory]) -> dict[str, float]:
        """Return the number of places, and the pass rates of both arms, in all and of each kind of wasted turn."""
        rows = [
            (self.kinds[it.id], self.arms[it.id], it.verdict.kind is VerdictKind.PASSED)
            for it in episodes
            if it.id in self.kinds and it.verdict.is_valid
        ]
        num_places = len(self.kinds) / (len(ARMS) * self._config.num_forks)
        metrics = {"hints/num_places": num_places, "hints/num_forks": float(len(rows))}
        for arm in ARMS:
            for kind in ("", *DETECTORS):
                passed = [is_passed for its, of_arm, is_passed in rows if of_arm == arm and kind in ("", its)]
                if passed:
                    metrics[f"hints/{kind}{'/' if kind else ''}{arm}_pass_rate"] = sum(passed) / len(passed)
        return metrics
