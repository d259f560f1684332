"""Trees on the lock of three turns: their estimators open it with fewer sampled actions than GRPO on chains."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.learning.test_known_problems import (
    GROUP_SIZE,
    LOCK,
    State,
    action_log_probs,
    by_token,
    make_trainer,
    sample_episodes,
    update,
    value_of,
)
from transformers import PreTrainedModel

from repairgym.learning.advantages import Outcome, estimate_advantages
from repairgym.learning.rl import PolicyTrainer
from repairgym.learning.samples import Sample

NUM_CHAINS, NUM_GROUPS = 4, 4
"""Half of the groups that the other tests have, so that samples are what is lacking."""
GOAL = 0.95 * LOCK.optimum()


def play(model: PreTrainedModel, states: list[State], generator: np.random.Generator) -> list[list[float]]:
    """Play each of ``states`` to its end, in place; return the log-probabilities of its new actions."""
    known: list[list[float]] = [[] for _ in states]
    for turn in range(LOCK.num_turns):
        here = [index for index, (_, actions) in enumerate(states) if len(actions) == turn]
        if not here:
            continue
        log_probs = action_log_probs(model, LOCK, [states[index] for index in here])
        tokens = (log_probs + generator.gumbel(size=log_probs.shape)).argmax(1)
        for row, (index, token) in enumerate(zip(here, tokens.tolist(), strict=True)):
            known[index].append(float(log_probs[row, token]))
            states[index] = (states[index][0], (*states[index][1], token))
    return known


def sample_trees(
    model: PreTrainedModel, generator: np.random.Generator
) -> tuple[list[Sample], list[list[Outcome]], int]:
    """Groups of chains and branches behind random turns of them: samples, outcomes, number of sampled actions."""
    samples, groups, num_actions = list[Sample](), list[list[Outcome]](), 0
    for group in range(NUM_GROUPS):
        states: list[State] = [(group % LOCK.num_contexts, ()) for _ in range(NUM_CHAINS)]
        known = play(model, states, generator)
        places = generator.permutation([(m, t) for m in range(NUM_CHAINS) for t in range(1, LOCK.num_turns)])
        shape = [(-1, 0)] * NUM_CHAINS + [(int(m), int(t)) for m, t in places[: GROUP_SIZE - NUM_CHAINS]]
        branches: list[State] = [(states[m][0], states[m][1][:t]) for m, t in shape[NUM_CHAINS:]]
        known += play(model, branches, generator)
        states += branches
        outcomes = []
        for (context, actions), log_probs, (parent, shared) in zip(states, known, shape, strict=True):
            ids = np.array(LOCK.token_ids(context, actions), np.int32)
            turn, old = np.full(len(ids), -1, np.int32), np.zeros(len(ids), np.float32)
            turn[2::3], old[2::3][shared:] = np.arange(LOCK.num_turns), log_probs
            weight = (turn >= shared).astype(np.float32)
            samples.append(Sample(ids, weight, old, 0.0, str(group), turn=turn))
            num_actions += len(log_probs)
            outcomes.append(
                Outcome(
                    LOCK.reward(context, actions),
                    LOCK.num_turns - shared,
                    LOCK.states(context, actions),
                    num_turns=LOCK.num_turns,
                    parent=parent,
                    num_shared_turns=shared,
                )
            )
        groups.append(outcomes)
    return samples, groups, num_actions


def learn(trainer: PolicyTrainer, samples: list[Sample], groups: list[list[Outcome]]) -> None:
    advantages = [
        value for results in estimate_advantages(groups, trainer.config.advantage) for value in results.of_members()
    ]
    trainer.update(
        [replace(sample, advantage=by_token(sample, value)) for sample, value in zip(samples, advantages, strict=True)]
    )


def actions_until_open(overrides: list[str], seed: int, max_actions: int, *, is_tree: bool = True) -> int | None:
    """Sampled actions until the policy is worth 95 % of the optimum, looked at every fourth update; None: never."""
    model, trainer = make_trainer(overrides, seed)
    generator = np.random.default_rng(seed)
    num_actions = num_updates = 0
    while num_actions < max_actions:
        if is_tree:
            samples, groups, num = sample_trees(model, generator)
            learn(trainer, samples, groups)
        else:
            samples, rewards = sample_episodes(model, LOCK, NUM_GROUPS, generator)
            update(trainer, LOCK, samples, rewards)
            num = len(samples) * LOCK.num_turns
        num_actions, num_updates = num_actions + num, num_updates + 1
        if num_updates % 4 == 0 and value_of(model, LOCK) > GOAL:
            return num_actions
    return None


TREES = {
    "tree_grpo": ["advantage.type=tree_grpo"],
    "tree_rl": ["advantage.type=tree_rl"],
    "state_value": ["advantage.type=state_value"],
}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("name", TREES)
def test_trees_open_the_lock_with_fewer_sampled_actions_than_grpo(name: str, seed: int) -> None:
    num_actions = actions_until_open(TREES[name], seed, 7000)
    assert num_actions is not None
    assert actions_until_open(["loss.type=grpo"], seed, num_actions, is_tree=False) is None
