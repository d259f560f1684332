"""Turn-level DAgger with the scripted expert (arXiv 2605.12913): a dense signal without a teacher model.

1. Run the policy on training tasks; each turn is the expert's with a chance that falls from round to round.
2. Ask the expert for the right action in every state that was visited, whoever led there.
3. Imitate its answers of all rounds, from the start checkpoint; the next round runs what comes out.
"""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np

from repairgym.agent.expert import Expert
from repairgym.config.rounds import DaggerConfig
from repairgym.errors import TaskError
from repairgym.inference.loading import copy_folder, load_tokenizer
from repairgym.inference.renderer import ChatRenderer
from repairgym.learning.samples import Sample
from repairgym.records import Task, Trajectory
from repairgym.rollout.jobs import make_groups
from repairgym.training.run import Run
from repairgym.training.supervised import fit_samples

START = "start"
STAGE = "dagger"


def dagger(run: Run, config: DaggerConfig) -> Path:
    """From checkpoint ``start`` of ``run`` to checkpoint ``dagger``; returns its folder.

    Raises:
        ConfigError: no training task.
        TaskError: the expert knows no action for any of them.
    """
    start, target = run.checkpoint(START), run.checkpoint(STAGE)
    renderer = ChatRenderer(load_tokenizer(start))
    tasks = run.select(config.select, STAGE)
    samples, current = list[Sample](), START
    for step in range(config.num_rounds):
        policy = replace(run.policy(current, version=step), expert_share=config.expert_share(step))
        jobs = make_groups(STAGE, step, [task.id for task in tasks], config.num_samples, run.seed)
        with run.store.phase(f"{STAGE}-{step}"):
            episodes = run.run_jobs(policy, jobs, phase=STAGE, step=step)
        samples += expert_samples(episodes, run.tasks, renderer)
        num_passed = sum(episode.verdict.is_valid and episode.verdict.reward > 0 for episode in episodes)
        metrics = {"dagger/num_labels": float(len(samples)), "dagger/num_passed": float(num_passed)}
        run.store.add_metrics(STAGE, step, metrics)
        if not samples:
            raise TaskError(f"{STAGE}: the expert knows no action for any of {len(tasks)} tasks (compact edits only)")
        current = f"{STAGE}-{step}"
        fit_samples(start, run.checkpoint(current), samples, config.sft, run.store, run.progress)
    copy_folder(run.checkpoint(current), target)
    return target


def expert_samples(episodes: Iterable[Trajectory], tasks: dict[str, Task], renderer: ChatRenderer) -> list[Sample]:
    """Return, for each turn of valid episodes, the expert's action behind the tokens that the actor saw.

    Only the expert's tokens are learned, by imitation: what was sampled is context, and no sample has an advantage.
    """
    samples = []
    for episode in episodes:
        expert = Expert.of(tasks[episode.task_id])
        for turn in episode.turns if episode.verdict.is_valid else ():
            action = expert.act()
            if action is not None:
                history, ids = episode.ledger.prompt_of(turn.action_span), renderer.action_ids(action)
                weight = np.repeat(np.array([0.0, 1.0], np.float32), [len(history), len(ids)])
                token_id = np.array([*history, *ids], np.int32)
                samples.append(Sample(token_id, weight, np.zeros(len(token_id), np.float32), group_id=episode.task_id))
            expert.observe(turn.action, turn.observation)
    return samples
