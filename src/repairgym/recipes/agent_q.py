"""Agent Q (arXiv 2408.07199, Algorithm 1): search over turns, preferences between the actions of one node, repeat.

1. Search with the present policy: UCT over the turns of each task; the reward of a leaf is its verdict.
2. Pair the best and the worst action of each node whose values differ enough, by the leaves below them.
3. Update by step-level DPO with that policy as the reference; the next round searches with what comes out.
"""

from pathlib import Path

from repairgym.config.rounds import AgentQConfig
from repairgym.errors import TaskError
from repairgym.inference.loading import copy_folder
from repairgym.recipes.step_dpo import PreferenceWork, action_pairs
from repairgym.training.processes import assign
from repairgym.training.run import Run
from repairgym.training.trees import plan_groups

START = "start"
STAGE = "agent_q"


def agent_q(run: Run, config: AgentQConfig) -> Path:
    """From checkpoint ``start`` of ``run`` to checkpoint ``agent_q``; returns its folder.

    Raises:
        ConfigError: no training task.
        TaskError: no node of the first round has two actions whose values differ enough.
    """
    tasks = run.select(config.select, STAGE)
    current = START
    for step in range(config.num_rounds):
        ids = [task.id for task in tasks]
        jobs, trees = plan_groups(config.tree, STAGE, step, ids, config.num_leaves, run.seed)
        with run.store.phase(f"{STAGE}-{step}"):
            episodes = run.run_jobs(run.policy(current, version=step), jobs, phase=STAGE, step=step, trees=trees)
        pairs = action_pairs(episodes, config.min_gap, config.max_per_task, config.critic_weight)
        num_sampled = sum(int(episode.ledger.is_action.sum()) for episode in episodes)
        metrics = {"preference/num_pairs": float(len(pairs)), "rollout/num_sampled_tokens": float(num_sampled)}
        if not pairs and current == START:
            raise TaskError(
                f"{STAGE}: no node has two actions that differ by more than {config.min_gap} in value; search more "
                "(num_leaves), take other tasks, or lower min_gap"
            )
        name = f"{STAGE}-{step}"
        if not pairs:
            copy_folder(run.checkpoint(current), run.checkpoint(name))
        elif not run.checkpoint(name).exists():
            work = PreferenceWork(run.checkpoint(current), run.checkpoint(name), pairs, config.step_dpo)
            assign(work)
            metrics |= work.learn()[1]
        run.store.add_metrics(STAGE, step, metrics)
        current = name
    copy_folder(run.checkpoint(current), run.checkpoint(STAGE))
    return run.checkpoint(STAGE)
