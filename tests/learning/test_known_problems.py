"""Every algorithm reaches the optimum of two problems whose optimum is known.

The value of a policy is computed exactly, by enumerating what it can do, so nothing here depends on the luck of an
evaluation; training samples with a fixed seed. The problems: a bandit with four contexts, and a lock that is opened by
three right actions, each depending on what was seen last, with one reward at the end.
"""

from __future__ import annotations

import collections
import copy
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from repairgym.config.learning import AlgorithmConfig, OptimizerConfig, StepDpoConfig
from repairgym.config.loading import load_config
from repairgym.config.models import ModelConfig
from repairgym.inference.loading import create_model
from repairgym.learning.advantages import Outcome, estimate_advantages
from repairgym.learning.preferences import Pair, PreferenceTrainer
from repairgym.learning.rl import PolicyTrainer
from repairgym.learning.samples import Sample
from repairgym.training.asynchronous import BackgroundUpdates

NUM_TOKENS, NUM_ACTIONS = 12, 4
"""Every token is an action, ``token % 4``, so policies sample from all they can say; 4 to 11 are observations too."""
GROUP_SIZE = 8
ALGORITHMS: dict[str, list[str]] = {
    "dapo": [],
    "grpo": ["loss.type=grpo"],
    "dr_grpo": ["loss.type=dr_grpo", "loss.max_action_tokens=3", "advantage.type=dr_grpo"],
    "rloo": ["advantage.type=rloo"],
    "reinforce_pp": ["advantage.type=reinforce_pp"],
    "reinforce_pp_leave_one_out": ["advantage.type=reinforce_pp", "advantage.baseline=leave_one_out"],
    "gspo": ["loss.type=gspo", "loss.eps_low=0.2", "loss.eps_high=0.3"],
    "cispo": ["loss.type=cispo"],
    # A value head that still learns makes noisier advantages: smaller steps.
    "ppo": [
        "loss.type=ppo",
        "advantage.type=gae",
        "advantage.turn_discount=0.95",
        "loss.value_learning_rate=0.03",
        "optimizer.learning_rate=0.0015",
    ],
    "state_value": ["advantage.type=state_value"],
    "dapo_corrected": ["correction.type=truncate", "kl.type=k3", "kl.coefficient=0.0001"],
}
VARIANTS = ("reinforce_pp_leave_one_out", "dapo_corrected", "state_value")
"""Only in the slow tests."""


@dataclass(frozen=True)
class Problem:
    """An environment with one reward at the end."""

    num_contexts: int
    num_turns: int
    observe: Callable[[int, tuple[int, ...]], int]
    """Context and actions so far -> the next observation token."""
    state: Callable[[int, tuple[int, ...]], int]
    """What decides the future, besides the number of actions so far."""
    reward: Callable[[int, tuple[int, ...]], float]
    """Context and all actions -> reward."""
    num_updates: int
    """Within which every algorithm reaches 95 % of the optimum."""

    def token_ids(self, context: int, actions: tuple[int, ...]) -> list[int]:
        """Observation, action, observation, ... up to the last observation that the actions led to."""
        ids = []
        for turn in range(min(len(actions) + 1, self.num_turns)):
            ids += [NUM_TOKENS - 1, self.observe(context, actions[:turn]), *actions[turn : turn + 1]]
        return ids

    def states(self, context: int, actions: tuple[int, ...]) -> tuple[str, ...]:
        """Name the state before each action."""
        return tuple(f"{turn}:{self.state(context, actions[:turn])}" for turn in range(self.num_turns))

    def optimum(self) -> float:
        """Mean over contexts of the best that any sequence of actions is worth."""
        sequences = list(itertools.product(range(NUM_ACTIONS), repeat=self.num_turns))
        best = [max(self.reward(context, actions) for actions in sequences) for context in range(self.num_contexts)]
        return sum(best) / self.num_contexts


BANDIT = Problem(
    num_contexts=4,
    num_turns=1,
    observe=lambda context, actions: 4 + context,
    state=lambda context, actions: 0,
    reward=lambda context, actions: (0.0, 0.1, 0.3, 1.0)[(actions[0] + context) % NUM_ACTIONS],
    num_updates=60,
)


def lock_state(context: int, actions: tuple[int, ...]) -> int:
    """Number of right actions; the right one follows from context and state, and a wrong one changes nothing."""
    state = 0
    for action in actions:
        state += action % NUM_ACTIONS == (context + state) % NUM_ACTIONS
    return state


LOCK = Problem(
    num_contexts=2,
    num_turns=3,
    observe=lambda context, actions: 4 + 4 * context + lock_state(context, actions),
    state=lock_state,
    reward=lambda context, actions: lock_state(context, actions) / 3,
    num_updates=60,
)


def new_model(seed: int) -> PreTrainedModel:
    return create_model(
        ModelConfig(
            vocab_size=NUM_TOKENS,
            hidden_size=32,
            num_layers=1,
            num_heads=2,
            num_kv_heads=2,
            head_dim=16,
            intermediate_size=64,
            seed=seed,
        )
    )


State = tuple[int, tuple[int, ...]]
"""A context and the actions so far."""


def action_log_probs(model: PreTrainedModel, problem: Problem, states: Sequence[State]) -> np.ndarray:
    """[states, tokens] log-probabilities of the next action; all states have equally many actions behind them."""
    ids = torch.tensor([problem.token_ids(context, actions) for context, actions in states])
    with torch.no_grad():
        return torch.log_softmax(model(ids).logits[:, -1], -1).numpy()


def value_of(model: PreTrainedModel, problem: Problem) -> float:
    """Exact expected reward of the model, over everything it can say."""
    states: list[State] = [(context, ()) for context in range(problem.num_contexts)]
    probability = np.full(len(states), 1.0 / problem.num_contexts)
    for _ in range(problem.num_turns):
        probability = (probability[:, None] * np.exp(action_log_probs(model, problem, states))).ravel()
        states = [(context, (*actions, token)) for context, actions in states for token in range(NUM_TOKENS)]
    return float(sum(p * problem.reward(*state) for p, state in zip(probability, states, strict=True)))


def sample_episodes(
    model: PreTrainedModel, problem: Problem, num_groups: int, generator: np.random.Generator
) -> tuple[list[Sample], list[float]]:
    """Groups of episodes, each of one context, and their rewards."""
    states: list[State] = [(group % problem.num_contexts, ()) for group in range(num_groups) for _ in range(GROUP_SIZE)]
    known: list[list[float]] = [[] for _ in states]
    for _ in range(problem.num_turns):
        log_probs = action_log_probs(model, problem, states)
        # The largest of log-probability plus Gumbel noise is a draw from the distribution.
        tokens = (log_probs + generator.gumbel(size=log_probs.shape)).argmax(1)
        for index, token in enumerate(tokens.tolist()):
            known[index].append(float(log_probs[index, token]))
            states[index] = (states[index][0], (*states[index][1], token))
    samples = []
    for index, state in enumerate(states):
        ids = np.array(problem.token_ids(*state), np.int32)
        turn, old = np.full(len(ids), -1, np.int32), np.zeros(len(ids), np.float32)
        turn[2::3], old[2::3] = np.arange(problem.num_turns), known[index]
        samples.append(Sample(ids, (turn >= 0).astype(np.float32), old, 0.0, str(index // GROUP_SIZE), turn=turn))
    return samples, [problem.reward(*state) for state in states]


def make_trainer(overrides: list[str], seed: int) -> tuple[PreTrainedModel, PolicyTrainer]:
    """A new model that is trained in two optimizer steps per iteration, so that ratios leave 1."""
    config = load_config(
        AlgorithmConfig,
        None,
        ["optimizer.learning_rate=0.003", "optimizer.weight_decay=0.0", "batch_size=32", f"seed={seed}", *overrides],
    )
    model = new_model(seed)
    return model, PolicyTrainer(model, config, reference=new_model(seed))


def states_of(problem: Problem, sample: Sample) -> tuple[str, ...]:
    """Return the state before each action of a sample."""
    context = (
        (int(sample.token_id[1]) - 4) % problem.num_contexts
        if problem is BANDIT
        else (int(sample.token_id[1]) - 4) // 4
    )
    return problem.states(context, tuple(sample.token_id[2::3].tolist()))


def by_token(sample: Sample, advantage: float | np.ndarray) -> float | np.ndarray:
    """Advantages of turns as advantages of tokens."""
    return np.append(advantage, 0.0)[sample.turn] if isinstance(advantage, np.ndarray) else advantage


def update(trainer: PolicyTrainer, problem: Problem, samples: list[Sample], rewards: list[float]) -> dict[str, float]:
    outcomes = [
        Outcome(reward, problem.num_turns, states_of(problem, sample))
        for sample, reward in zip(samples, rewards, strict=True)
    ]
    groups = [outcomes[start : start + GROUP_SIZE] for start in range(0, len(outcomes), GROUP_SIZE)]
    advantages = [
        value for results in estimate_advantages(groups, trainer.config.advantage) for value in results.of_members()
    ]
    rows = zip(samples, advantages, rewards, strict=True)
    return trainer.update(
        [replace(sample, advantage=by_token(sample, value), reward=reward) for sample, value, reward in rows]
    )


def train_policy(problem: Problem, overrides: list[str], seed: int) -> PreTrainedModel:
    """``num_updates`` iterations of eight groups."""
    model, trainer = make_trainer(overrides, seed)
    generator = np.random.default_rng(seed)
    for _ in range(problem.num_updates):
        update(trainer, problem, *sample_episodes(model, problem, 8, generator))
    return model


def train_ahead(problem: Problem, seed: int, max_staleness: int) -> list[PreTrainedModel]:
    """The same in a thread next to sampling, from weights as old as they may be, so that nothing depends on timing.

    Half the steps' size and twice as many: at the full size the policy overshoots (docs/LOG.md, "Stale episodes").

    Returns:
        Every fifth policy of the last third, the last one among them.
    """
    model, trainer = make_trainer(["correction.type=truncate", "optimizer.learning_rate=0.0015"], seed)
    num_updates = 2 * problem.num_updates
    sampler, generator = new_model(seed), np.random.default_rng(seed)
    versions = [copy.deepcopy(model.state_dict())]

    def learn(episodes: tuple[list[Sample], list[float]]) -> dict[str, float]:
        metrics = update(trainer, problem, *episodes)
        versions.append(copy.deepcopy(model.state_dict()))
        return metrics

    with BackgroundUpdates(learn, 0) as updates:
        for step in range(num_updates):
            collections.deque(updates.finished(step - max_staleness), maxlen=0)
            sampler.load_state_dict(versions[max(0, step - max_staleness)])
            updates.submit(sample_episodes(sampler, problem, 8, generator))
        collections.deque(updates.finished(num_updates), maxlen=0)
    policies = []
    for state in versions[: -num_updates // 3 : -5]:
        policies.append(new_model(seed))
        policies[-1].load_state_dict(state)
    return policies


def train_preferences(problem: Problem, seed: int) -> PreTrainedModel:
    """As many updates of step-DPO: the best and the worst first action of each group, one turn each."""
    config = StepDpoConfig(
        beta=0.5, optimizer=OptimizerConfig(learning_rate=0.01, weight_decay=0.0), batch_size=4, seed=seed
    )
    model, generator = new_model(seed), np.random.default_rng(seed)
    trainer = PreferenceTrainer(model, config)
    for _ in range(problem.num_updates):
        samples, rewards = sample_episodes(model, problem, 8, generator)
        pairs = []
        for start in range(0, len(samples), GROUP_SIZE):
            ranked = sorted(range(start, start + GROUP_SIZE), key=lambda index: rewards[index])
            if rewards[ranked[0]] < rewards[ranked[-1]]:
                pairs.append(Pair(chosen=samples[ranked[-1]], rejected=samples[ranked[0]]))
        trainer.update(pairs)
    return model


def check_optimum(models: Sequence[PreTrainedModel], problem: Problem, seed: int) -> None:
    """The median of ``models``: where learning is late, a single policy may overshoot and come back."""
    start, reached = value_of(new_model(seed), problem), np.median([value_of(model, problem) for model in models])
    assert start < 0.6 * problem.optimum()
    assert reached > 0.95 * problem.optimum(), f"from {start:.3f} to {reached:.3f}"


def reach(algorithm: str, problem: Problem, seed: int) -> None:
    check_optimum([train_policy(problem, ALGORITHMS[algorithm], seed)], problem, seed)


@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name not in VARIANTS])
def test_every_algorithm_solves_the_bandit(algorithm: str) -> None:
    reach(algorithm, BANDIT, 0)


def test_dapo_opens_the_lock() -> None:
    reach("dapo", LOCK, 0)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_credit_by_state_opens_the_lock_with_fewer_samples_than_grpo(seed: int) -> None:
    """Half as many groups per update as elsewhere, so that samples are what both lack."""
    goal = 0.95 * LOCK.optimum()
    model, trainer = make_trainer(ALGORITHMS["state_value"], seed)
    generator, num_updates = np.random.default_rng(seed), 0
    while num_updates < 72 and (num_updates < 40 or num_updates % 4 or value_of(model, LOCK) <= goal):
        update(trainer, LOCK, *sample_episodes(model, LOCK, 4, generator))
        num_updates += 1
    assert value_of(model, LOCK) > goal
    model, trainer = make_trainer(ALGORITHMS["grpo"], seed)
    generator = np.random.default_rng(seed)
    for _ in range(num_updates):
        update(trainer, LOCK, *sample_episodes(model, LOCK, 4, generator))
    assert value_of(model, LOCK) < goal


@pytest.mark.slow
def test_staleness_two_solves_the_bandit() -> None:
    check_optimum(train_ahead(BANDIT, 0, 2), BANDIT, 0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(
    ("problem", "max_staleness"), [(BANDIT, 1), (BANDIT, 2), (LOCK, 1)], ids=["bandit-1", "bandit-2", "lock-1"]
)  # the lock with 2 does not hold: docs/LOG.md, "Stale episodes"
def test_stale_episodes_lead_to_the_optimum_too(problem: Problem, max_staleness: int, seed: int) -> None:
    check_optimum(train_ahead(problem, seed, max_staleness), problem, seed)


def test_step_dpo_solves_the_bandit() -> None:
    check_optimum([train_preferences(BANDIT, 0)], BANDIT, 0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_bandit_with_three_seeds(algorithm: str, seed: int) -> None:
    reach(algorithm, BANDIT, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_opens_the_lock(algorithm: str, seed: int) -> None:
    reach(algorithm, LOCK, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_step_dpo_with_other_seeds(seed: int) -> None:
    check_optimum([train_preferences(BANDIT, seed)], BANDIT, seed)


def test_the_problems_have_the_stated_optima() -> None:
    """The optimum is 1 for both, and a policy that knows nothing is far from it."""
    assert BANDIT.optimum() == LOCK.optimum() == 1.0
    assert [lock_state(1, actions) for actions in ((1,), (1, 2), (1, 2, 3), (1, 0, 2), (0, 5))] == [1, 2, 3, 2, 1]
    assert value_of(new_model(0), BANDIT) == pytest.approx(0.35, abs=0.05)
