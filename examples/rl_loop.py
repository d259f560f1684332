"""GRPO on code repair, top to bottom in one file: `python examples/rl_loop.py` (about two minutes on two cores).

The same loop as `repairgym train rl`, without its options: sample a group of episodes per task, grade them in
sandboxes, compare each with its group, take one gradient step, repeat. Read it from `main` upwards. For real runs use
`repairgym.train_rl`, which adds worker processes, resuming, packing, validation and alarms.

Notation. A suffix names the axes of an array or list, from the outermost to the innermost:

    _P  problems: tasks of one iteration
    _G  group: episodes of one task
    _B  batch: episodes that are learned together
    _T  tokens: positions of one episode, padded to the longest of the batch

    rewards_P_G[p][g]     1.0 if episode g on problem p passed, 0.0 if it failed, None if its sandbox failed
    advantages_P_G        reward minus the mean of its group, divided by the group's deviation
    tokens_B_T            token ids of whole episodes: prompt, actions and observations
    is_action_B_T         1.0 where the policy sampled the token, 0.0 for prompts, observations and padding
    old_log_probs_B_T     log-probability of each token under the weights that sampled it
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import time

import torch
from transformers import PreTrainedModel

import repairgym
from repairgym.config.recipes import DemoConfig
from repairgym.inference.embedded import EmbeddedPolicy
from repairgym.inference.loading import load_model, load_tokenizer
from repairgym.inference.renderer import ChatRenderer
from repairgym.records import Task, Trajectory
from repairgym.rollout.jobs import make_groups
from repairgym.rollout.runner import Runner
from repairgym.sandbox.probe import create_backend
from repairgym.tasks.build.validation import task_layers
from repairgym.tasks.layers.store import LayerStore


def make_tasks(args: argparse.Namespace) -> list[Task]:
    """Break the code of a package in many ways; each bug that its tests find is a task."""
    tasks = repairgym.build_tasks(f"{args.folder}/tasks", packages=[args.package], num_tasks=args.tasks)
    print(f"{len(tasks)} tasks of {args.package}, for example: {tasks[0].issue.splitlines()[0]}")
    return tasks


async def sample(
    runner: Runner, policy: EmbeddedPolicy, tasks_P: list[Task], step: int, args: argparse.Namespace
) -> list[list[Trajectory]]:
    """Run one group of episodes per task and return the graded trajectories_P_G.

    An episode is a conversation: the policy reads the issue and answers with an action (find, edit, test, undo,
    submit), the sandbox answers with an observation, until the policy submits or a limit is reached. Then the grader
    applies the submission to the pinned tree and runs the tests that decide.
    """
    jobs = make_groups("rl", step, [task.id for task in tasks_P], args.group_size, args.seed)
    trajectories: dict[str, list[Trajectory]] = {task.id: [] for task in tasks_P}
    async for trajectory in runner.run(jobs, {task.id: task for task in tasks_P}, policy, temperature=1.0):
        trajectories[trajectory.task_id].append(trajectory)
    return [trajectories[task.id] for task in tasks_P]


def rewards_of(trajectories_G: list[Trajectory]) -> list[float | None]:
    """Reward 1 for a passed verdict, 0 for a failed or exploited one; an invalid one says nothing about the policy."""
    return [t.verdict.reward if t.verdict.is_valid else None for t in trajectories_G]


def group_advantages(rewards_G: list[float | None]) -> list[float]:
    """GRPO: (reward - mean of the group) / (deviation of the group + 1e-6); zeros where all rewards are equal.

    The group is the baseline: an episode is good if it did better than others on the same problem. No value network.
    """
    valid = [reward for reward in rewards_G if reward is not None]
    if len(valid) < 2 or len(set(valid)) == 1:
        return [0.0] * len(rewards_G)  # nothing to compare, nothing to learn
    mean, deviation = statistics.fmean(valid), statistics.pstdev(valid)
    return [0.0 if reward is None else (reward - mean) / (deviation + 1e-6) for reward in rewards_G]


def pad(trajectories_B: list[Trajectory]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return tokens_B_T, is_action_B_T and old_log_probs_B_T.

    The token ledger holds the ids as they were sampled. Text is never encoded again: another split into tokens would
    have other probabilities.
    """
    length = max(len(t.ledger) for t in trajectories_B)
    tokens_B_T = torch.zeros(len(trajectories_B), length, dtype=torch.long)
    is_action_B_T = torch.zeros(len(trajectories_B), length)
    old_log_probs_B_T = torch.zeros(len(trajectories_B), length)
    for row, trajectory in enumerate(trajectories_B):
        ledger = trajectory.ledger
        tokens_B_T[row, : len(ledger)] = torch.tensor(ledger.token_id, dtype=torch.long)
        is_action_B_T[row, : len(ledger)] = torch.tensor(ledger.is_action, dtype=torch.float32)
        old_log_probs_B_T[row, : len(ledger)] = torch.nan_to_num(torch.tensor(ledger.log_prob))
    return tokens_B_T, is_action_B_T, old_log_probs_B_T * is_action_B_T


def log_probs_of(model: PreTrainedModel, tokens_B_T: torch.Tensor) -> torch.Tensor:
    """Return log_probs_B_T: position t holds log p(token t | tokens before t); position 0 holds 0.

    Padding stands at the end, and attention is causal, so no mask is needed.
    """
    logits_B_T_V = model(tokens_B_T[:, :-1]).logits
    log_probs_B_T = torch.log_softmax(logits_B_T_V.float(), dim=-1).gather(-1, tokens_B_T[:, 1:, None]).squeeze(-1)
    return torch.nn.functional.pad(log_probs_B_T, (1, 0))


def grpo_loss(
    log_probs_B_T: torch.Tensor,
    old_log_probs_B_T: torch.Tensor,
    advantages_B: torch.Tensor,
    is_action_B_T: torch.Tensor,
    clip: float = 0.2,
) -> torch.Tensor:
    """Return the sum over episodes of the mean clipped objective of their action tokens, negated.

    ratio = p_new / p_old; the objective is min(ratio * A, clip(ratio, 1 - clip, 1 + clip) * A): a token gains nothing
    from moving further than the clip in the direction that its advantage asks for (GRPO, arXiv 2402.03300, without
    its KL term). With one step per batch the ratio is 1; it matters as soon as a batch is used twice.
    """
    ratio_B_T = torch.exp((log_probs_B_T - old_log_probs_B_T) * is_action_B_T)
    advantages_B_1 = advantages_B[:, None]
    objective_B_T = torch.minimum(
        ratio_B_T * advantages_B_1, torch.clamp(ratio_B_T, 1 - clip, 1 + clip) * advantages_B_1
    )
    num_actions_B = is_action_B_T.sum(dim=1).clamp(min=1)
    return -((objective_B_T * is_action_B_T).sum(dim=1) / num_actions_B).sum()


def update(
    model: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    trajectories_B: list[Trajectory],
    advantages_B: list[float],
    num_micro: int = 8,
) -> dict[str, float]:
    """Take one gradient step on all episodes with an advantage, a few at a time to bound the memory."""
    pairs = [(t, a) for t, a in zip(trajectories_B, advantages_B, strict=True) if a != 0.0]
    pairs.sort(key=lambda pair: len(pair[0].ledger))  # like lengths together: little padding
    if not pairs:
        return {"loss": 0.0, "grad_norm": 0.0, "log_prob_gap": 0.0}
    total_loss = total_gap = num_tokens = 0.0
    for start in range(0, len(pairs), num_micro):
        micro, advantages_micro = zip(*pairs[start : start + num_micro], strict=True)
        tokens_B_T, is_action_B_T, old_log_probs_B_T = pad(list(micro))
        log_probs_B_T = log_probs_of(model, tokens_B_T)
        loss = grpo_loss(log_probs_B_T, old_log_probs_B_T, torch.tensor(advantages_micro), is_action_B_T) / len(pairs)
        loss.backward()
        total_loss += loss.item()
        total_gap += ((log_probs_B_T.detach() - old_log_probs_B_T).abs() * is_action_B_T).sum().item()
        num_tokens += is_action_B_T.sum().item()
    grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    # Sampler and learner must be the same policy: a gap above 1e-3 would mean that the gradient is of another one.
    return {"loss": total_loss, "grad_norm": float(grad_norm), "log_prob_gap": total_gap / max(1.0, num_tokens)}


async def train(tasks: list[Task], args: argparse.Namespace) -> None:
    """Repeat: choose tasks, sample groups, compare, step, give the new weights to the sampler."""
    config = DemoConfig().rollout  # tools, limits and sandbox that fit the shipped base
    base = repairgym.shipped_base()
    model = load_model(base)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate, weight_decay=0.0)
    policy = EmbeddedPolicy.from_folder(base, config.engine)  # an inference engine with its own copy of the weights
    backend = create_backend(config.sandbox)
    layers = LayerStore()
    runner = Runner(config, backend, lambda task: task_layers(task, layers), ChatRenderer(load_tokenizer(base)))
    generator = random.Random(args.seed)
    try:
        for step in range(args.steps):
            started = time.monotonic()
            tasks_P = generator.sample(tasks, min(args.problems, len(tasks)))
            trajectories_P_G = await sample(runner, policy, tasks_P, step, args)
            sampled = time.monotonic()
            rewards_P_G = [rewards_of(trajectories_G) for trajectories_G in trajectories_P_G]
            advantages_P_G = [group_advantages(rewards_G) for rewards_G in rewards_P_G]
            trajectories_B = [trajectory for trajectories_G in trajectories_P_G for trajectory in trajectories_G]
            advantages_B = [advantage for advantages_G in advantages_P_G for advantage in advantages_G]
            metrics = update(model, optimizer, trajectories_B, advantages_B)
            await policy.load_state(model.state_dict(), version=step + 1)  # the next episodes come from the new weights
            report(step, rewards_P_G, metrics, sampled - started, time.monotonic() - sampled)
    finally:
        await policy.close()
        await backend.close()


def report(
    step: int, rewards_P_G: list[list[float | None]], metrics: dict[str, float], sample_s: float, update_s: float
) -> None:
    """Print one line per step: the mean reward, how many groups taught something, the rewards of each group."""
    valid = [reward for rewards_G in rewards_P_G for reward in rewards_G if reward is not None]
    num_mixed = sum(len({reward for reward in rewards_G if reward is not None}) > 1 for rewards_G in rewards_P_G)
    groups = " ".join(
        "".join("-" if reward is None else str(int(reward)) for reward in rewards_G) for rewards_G in rewards_P_G
    )
    print(
        f"step {step}: reward {statistics.fmean(valid or [0.0]):.3f}, {num_mixed} of {len(rewards_P_G)} groups mixed "
        f"[{groups}], loss {metrics['loss']:+.4f}, gradient {metrics['grad_norm']:.3f}, log-prob gap "
        f"{metrics['log_prob_gap']:.1e}, {sample_s:.1f} s sampling, {update_s:.1f} s learning",
        flush=True,
    )


def main() -> None:
    """Read the sizes, make the tasks, train."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--folder", default="runs/rl-loop")
    parser.add_argument("--package", default="texttable", help="a name in the catalogue")
    parser.add_argument("--tasks", type=int, default=16, help="tasks to build")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--problems", type=int, default=4, help="problems per step (P)")
    parser.add_argument("--group-size", type=int, default=8, help="episodes per problem (G)")
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    asyncio.run(train(make_tasks(args), args))


if __name__ == "__main__":  # the build starts new interpreters that import this file
    main()
